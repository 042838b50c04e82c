"""Read the URL of a deployment's Redis: one server, by TCP, TLS or a socket, or one that Sentinels name.

    redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]      rediss:// the same by TLS; unix://[...@]/PATH[?db=N]
    redis+sentinel://[USER:PASSWORD@]SENTINEL[:PORT],SENTINEL[:PORT],.../NAME[/DATABASE]
    rediss+sentinel://                                  the same by TLS, to the Sentinels, too

Behind `?`, for TLS: redis-py's `ssl_ca_certs`, `ssl_ca_path`, `ssl_certfile`, `ssl_keyfile`, `ssl_cert_reqs` and
`ssl_check_hostname`; for Sentinels: `sentinel_username`, `sentinel_password`. Percent-encoding is as in any URL.
"""

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
    """A URL's parts. `servers` is the one server, the Sentinels, or for a socket empty."""

    servers: tuple[Address, ...]
    service: str = ""  # the name that Sentinels know the master by; empty: no Sentinels
    socket: str = ""  # path; empty: no socket
    database: int = 0
    login: dict[str, str] = field(default_factory=dict)  # username, password: those that are given
    tls: dict[str, Any] | None = None  # redis-py's options; None: no TLS
    sentinel_login: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError, which says what is wrong and shows no password."""
        scheme, separator, rest = text.partition("://")
        if not separator or scheme not in SCHEMES:
            raise ValueError(
                f"a Redis URL begins with {', '.join(f'{one}://' for one in SCHEMES[:-1])} or {SCHEMES[-1]}://"
            )
        is_sentinel, is_tls = scheme.endswith("+sentinel"), scheme.startswith("rediss")
        try:
            parts = urlsplit(f"//{rest}")
        except ValueError:  # which would show the password
            raise ValueError("a Redis URL has characters that are not allowed in one: write them as %XX") from None
        user, _, servers = parts.netloc.rpartition("@")
        name, has_password, password = user.partition(":")
        options = _options(parts.query, is_tls, is_sentinel, is_socket=scheme == "unix")
        login = {"username": unquote(name)} if name else {}
        login |= {"password": unquote(password)} if has_password else {}
        database = options.pop("db", "")
        if scheme == "unix":
            if servers or not parts.path.strip("/"):
                raise ValueError("unix:// takes a path: unix:///run/redis.sock")
            return cls((), socket=unquote(parts.path), database=_database(database), login=login)
        port = SENTINEL_PORT if is_sentinel else PORT
        if "," in servers and not is_sentinel:
            raise ValueError(f"{scheme}:// takes one server; several Sentinels are {scheme}+sentinel://")
        addresses = tuple(_address(server, port) for server in servers.split(","))
        path = [unquote(part) for part in parts.path.strip("/").split("/")]
        service = path.pop(0) if is_sentinel else ""
        if is_sentinel and not service:
            raise ValueError("behind the Sentinels comes the name of their master: redis+sentinel://HOST:26379/NAME")
        if len(path) > 1:
            raise ValueError("a Redis URL ends with the number of a database")
        return cls(
            addresses,
            service=service,
            database=_database("".join(path) or database),
            login=login,
            tls={key: options[key] for key in TLS_OPTIONS if key in options} if is_tls else None,
            sentinel_login={key.removeprefix("sentinel_"): options[key] for key in LOGIN_OPTIONS if key in options},
        )


def checked(text: str) -> str:
    """Return the URL as it is. Raises ValueError, as `RedisUrl.parse` does."""
    RedisUrl.parse(text)
    return text


def with_password(url: str, password: str) -> str:
    """Add the password, unless the URL has a login."""
    scheme, _, rest = url.partition("://")
    has_login = "@" in rest.partition("/")[0]
    return url if has_login else f"{scheme}://:{quote(password, safe='')}@{rest}"


def _options(query: str, is_tls: bool, is_sentinel: bool, *, is_socket: bool) -> dict[str, Any]:
    known = [*TLS_OPTIONS * is_tls, *LOGIN_OPTIONS * is_sentinel, *("db",) * (not is_sentinel)]
    found: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            hint = "; it takes rediss://" if key in TLS_OPTIONS else ""
            raise ValueError(f"a Redis URL of this kind has no option {key}{hint}")
        found[key] = value
    if found.get("ssl_cert_reqs", "required") not in CERT_REQS:
        raise ValueError(f"ssl_cert_reqs is one of {', '.join(CERT_REQS)}")
    if "ssl_check_hostname" in found:
        if found["ssl_check_hostname"].lower() not in ("true", "false"):
            raise ValueError("ssl_check_hostname is true or false")
        found["ssl_check_hostname"] = found["ssl_check_hostname"].lower() == "true"
    return found


def _address(server: str, port: int) -> Address:
    """Read HOST, HOST:PORT or [IPV6]:PORT."""
    try:
        found = urlsplit(f"//{server}")
        host, port = found.hostname or "", found.port or port
    except ValueError:
        raise ValueError("the port of a Redis URL is a number up to 65535") from None
    if not host:
        raise ValueError("a Redis URL names a host")
    return unquote(host), port


def _database(text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise ValueError("the database of a Redis URL is a number")
    return int(text)
