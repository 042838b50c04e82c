"""Read the URL of a deployment's Redis: one server, by TCP, TLS or a socket, or a master that Sentinels name.

    redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]      rediss:// the same by TLS; unix://[...@]/PATH[?db=N]
    redis+sentinel://[USER:PASSWORD@]SENTINEL[:PORT],SENTINEL[:PORT],.../NAME[/DATABASE]
    rediss+sentinel://                                  the same by TLS, to the Sentinels, too

Options behind `?`, for TLS: redis-py's `ssl_ca_certs`, `ssl_ca_path`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs`
and `ssl_check_hostname`; for Sentinels: `sentinel_username`, `sentinel_password`. Parts are percent-encoded.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
PORT, SENTINEL_PORT = 6379, 26379
TLS_OPTIONS = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)
LOGIN_OPTIONS = ("sentinel_username", "sentinel_password")
CERT_REQS = ("required", "optional", "none")

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RedisUrl:
    servers: tuple[Address, ...]  # the one server, the Sentinels, or for a socket none
    service: str = ""  # the name that Sentinels know the master by; empty: no Sentinels
    socket: str = ""  # path; empty: no socket
    database: int = 0
    login: dict[str, str] = field(default_factory=dict)  # username, password: those that are given
    tls: dict[str, Any] | None = None  # redis-py's options; None: no TLS
    sentinel_login: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URL. Raises ValueError, whose text shows no password."""
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ValueError(
                f"a Redis URL must begin with {', '.join(f'{one}://' for one in SCHEMES[:-1])} or {SCHEMES[-1]}://"
            )
        is_sentinel, is_tls = scheme.endswith("+sentinel"), scheme.startswith("rediss")
        try:
            parts = urlsplit(f"//{rest}")
        except ValueError:  # its text would show the password
            raise ValueError("a Redis URL has characters that are not allowed in one: write them as %XX") from None
        user, _, servers = parts.netloc.rpartition("@")
        name, has_password, password = user.partition(":")
        options = _options(parts.query, is_tls, is_sentinel)
        login = {"username": unquote(name)} if name else {}
        login |= {"password": unquote(password)} if has_password else {}
        database = options.pop("db", "")
        if scheme == "unix":
            if servers or not parts.path.strip("/"):
                raise ValueError("a unix:// URL must have a path: unix:///run/redis.sock")
            return cls((), socket=unquote(parts.path), database=_database(database), login=login)
        port = SENTINEL_PORT if is_sentinel else PORT
        if "," in servers and not is_sentinel:
            raise ValueError(f"{scheme}:// takes one server; several Sentinels are {scheme}+sentinel://")
        addresses = tuple(_address(server, port) for server in servers.split(","))
        path = [unquote(part) for part in parts.path.strip("/").split("/")]
        service = path.pop(0) if is_sentinel else ""
        if is_sentinel and not service:
            raise ValueError(
                "a URL of Sentinels must end with the name of their master: redis+sentinel://HOST:26379/NAME"
            )
        if len(path) > 1:
            raise ValueError("a Redis URL must end with the number of a database")
        return cls(
            addresses,
            service=service,
            database=_database("".join(path) or database),
            login=login,
            tls={key: options[key] for key in TLS_OPTIONS if key in options} if is_tls else None,
            sentinel_login={key.removeprefix("sentinel_"): options[key] for key in LOGIN_OPTIONS if key in options},
        )


def checked(text: str) -> str:
    """Return the URL unchanged. Raises ValueError."""
    RedisUrl.parse(text)
    return text


def with_password(url: str, password: str) -> str:
    """Return the URL with this password, unless it has a login."""
    scheme, _, rest = url.partition("://")
    has_login = "@" in rest.partition("/")[0]
    return url if has_login else f"{scheme}://:{quote(password, safe='')}@{rest}"


def without_password(url: str) -> str:
    """Return the URL with *** in place of its login."""
    return re.sub(r"(?<=sentinel_password=)[^&]*", "***", re.sub(r"://[^/?]*@", "://***@", url))


def _options(query: str, is_tls: bool, is_sentinel: bool) -> dict[str, Any]:
    known = [*TLS_OPTIONS * is_tls, *LOGIN_OPTIONS * is_sentinel, *("db",) * (not is_sentinel)]
    found: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            hint = "; it takes rediss://" if key in TLS_OPTIONS else ""
            raise ValueError(f"a Redis URL of this kind has no option {key}{hint}")
        found[key] = value
    if found.get("ssl_cert_reqs", "required") not in CERT_REQS:
        raise ValueError(f"ssl_cert_reqs must be one of {', '.join(CERT_REQS)}")
    if "ssl_check_hostname" in found:
        if found["ssl_check_hostname"].lower() not in ("true", "false"):
            raise ValueError("ssl_check_hostname must be true or false")
        found["ssl_check_hostname"] = found["ssl_check_hostname"].lower() == "true"
    return found


def _address(server: str, port: int) -> Address:
    try:
        found = urlsplit(f"//{server}")
        host, port = found.hostname or "", found.port or port
    except ValueError:
        raise ValueError("the port of a Redis URL must be a number up to 65535") from None
    if not host:
        raise ValueError("a Redis URL must name a host")
    return unquote(host), port


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ValueError("the database of a Redis URL must be a number")
    return int(text)
