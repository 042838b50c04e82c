"""Redis URLs: what each kind means, and how a wrong one is refused."""

import re

import pytest

from app.cli.config import list_settings
from app.config import Settings
from app.errors import InvalidSettings
from app.redis_url import RedisUrl, with_password

GOOD = {
    "redis://host": RedisUrl((("host", 6379),)),
    "redis://:p%40ss@host:7000/3": RedisUrl((("host", 7000),), database=3, login={"password": "p@ss"}),
    "redis://user@[::1]:7000": RedisUrl((("::1", 7000),), login={"username": "user"}),
    "redis://host?db=4": RedisUrl((("host", 6379),), database=4),
    "rediss://u:p@host/1": RedisUrl((("host", 6379),), database=1, login={"username": "u", "password": "p"}, tls={}),
    "rediss://host?ssl_ca_certs=/ca.pem&ssl_check_hostname=False": RedisUrl(
        (("host", 6379),), tls={"ssl_ca_certs": "/ca.pem", "ssl_check_hostname": False}
    ),
    "unix://:p@/run/redis.sock?db=2": RedisUrl((), socket="/run/redis.sock", database=2, login={"password": "p"}),
    "redis+sentinel://a,b:7,[::1]:8/pace": RedisUrl((("a", 26379), ("b", 7), ("::1", 8)), service="pace"),
    "rediss+sentinel://:p@a/pace/5?sentinel_username=s&sentinel_password=t%26": RedisUrl(
        (("a", 26379),),
        service="pace",
        database=5,
        login={"password": "p"},
        tls={},
        sentinel_login={"username": "s", "password": "t&"},
    ),
}
BAD = {
    "host:6379": "must begin with redis://",
    "http://host": "must begin with redis://",
    "sentinel://host/pace": "must begin with redis://",
    "redis://": "must name a host",
    "redis://:hidden@/0": "must name a host",
    "redis://host:port/0": "port of a Redis URL must be a number",
    "redis://host:70000": "port of a Redis URL must be a number",
    "redis://host/first": "database of a Redis URL must be a number",
    "redis://host/0/1": "must end with the number of a database",
    "redis://host?ssl_ca_certs=/ca.pem": "no option ssl_ca_certs; it takes rediss://",
    "redis://host?socket_timeout=1": "no option socket_timeout",
    "redis://a:1,b:2/0": "takes one server; several Sentinels are redis+sentinel://",
    "rediss://host?ssl_cert_reqs=CERT_NONE": "ssl_cert_reqs must be one of required",
    "rediss://host?ssl_check_hostname=no": "ssl_check_hostname must be true or false",
    "unix://redis.sock": "a unix:// URL must have a path",
    "redis+sentinel://:hidden@host:26379": "the name of their master",
    "redis+sentinel://host/0/1/2": "must end with the number of a database",
    "redis+sentinel://a,,b/pace": "must name a host",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_url_is_read(text: str) -> None:
    assert RedisUrl.parse(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_a_wrong_url_is_refused_without_showing_its_password(text: str) -> None:
    with pytest.raises(InvalidSettings, match=re.escape(BAD[text])) as caught:
        Settings.from_env({"PACELINE_REDIS_URL": text})
    assert str(caught.value).startswith("PACELINE_REDIS_URL: ") and "hidden" not in str(caught.value)


def test_no_password_of_a_url_is_listed() -> None:
    text = "redis+sentinel://:hidden@a,b/pace?sentinel_password=hidden&sentinel_username=s"
    [found] = [one for one in list_settings({"PACELINE_REDIS_URL": text}) if one.name == "PACELINE_REDIS_URL"]
    assert found.value == "redis+sentinel://***@a,b/pace?sentinel_password=***&sentinel_username=s"


@pytest.mark.parametrize(
    "url, found",
    [
        ("redis://host:6379/0", "redis://:p%40ss@host:6379/0"),
        ("rediss+sentinel://a,b:1/name", "rediss+sentinel://:p%40ss@a,b:1/name"),
        ("unix:///run/redis.sock?db=1", "unix://:p%40ss@/run/redis.sock?db=1"),
        ("redis://:own@host", "redis://:own@host"),
        ("redis://user:own@host", "redis://user:own@host"),
    ],
)
def test_a_password_goes_into_a_url_without_a_login(url: str, found: str) -> None:
    assert with_password(url, "p@ss") == found
    assert RedisUrl.parse(found).login["password"] in ("p@ss", "own")
