"""Where Redis is: the addresses that `cache.url` takes, read and checked.

    redis://[user:password@]host[:port][/db]                               one server; rediss:// with TLS
    unix://[user:password@]/path/to/redis.sock[?db=0]                      one server on this machine
    redis+sentinel://[user:password@]host[:port][,host[:port]…]/service    the master that Sentinels know by that name
    redis+cluster://[user:password@]host[:port][,host[:port]…]             a cluster, found through any of its servers

`rediss+sentinel://` and `rediss+cluster://` are the same with TLS. Options follow a `?`, as redis-py calls them. No
message of this module repeats any part of an address, since every part may turn out to be half of a password.
"""

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote

import msgspec

SCHEMES: Final = (
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip

_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_TLS_OPTIONS: Final = (
    "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers",
)  # fmt: skip
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_BOOLEANS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

RedisKind = Literal["server", "socket", "sentinel", "cluster"]
HostPort = tuple[str, int]
"""A name or number, and a port."""


class RedisUrlError(ValueError):
    """An address of Redis that cannot be used; the message is one line and shows nothing of the address."""


class RedisUrl(msgspec.Struct, frozen=True, kw_only=True):
    """An address of Redis.

    - `hosts`: the server; the Sentinels; some servers of the cluster; empty for a Unix socket.
    - `path`: the Unix socket. `service`: what the Sentinels call the master.
    - `username`, `password`: of the servers that hold the keys; `sentinel_username`, `sentinel_password`: of the
      Sentinels, which have users of their own.
    - `tls`: whether all connections are encrypted; `tls_options`: how, by redis-py's names.
    """

    kind: RedisKind
    hosts: tuple[HostPort, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: bool = False
    tls_options: Mapping[str, str | bool] = {}

    def __repr__(self) -> str:
        return f"<Redis: {self.kind}>"  # a traceback must show no password


def parse_redis_url(url: str) -> RedisUrl:
    """Reads an address. Raises AddressError."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise RedisUrlError(f"expected embedded, {', '.join(f'{known}://' for known in SCHEMES)}")
    if not url.isprintable() or any(character in url for character in " #"):
        raise RedisUrlError("white space and # must be written as %20 and %23")
    place, _, query = rest.partition("?")
    location, _, path = place.partition("/")
    if "@" in path or "@" in query:
        raise RedisUrlError("in a user, password or option, / and ? and @ must be written as %2F, %3F and %40")
    credentials, _, hosts = location.rpartition("@")
    kind = _kind(scheme)
    tls = scheme.startswith("rediss")
    options = _options(query, kind, tls=tls)
    username, password = _credentials(credentials)
    return RedisUrl(
        kind=kind,
        hosts=_hosts(hosts, kind),
        path=_socket_path(path) if kind == "socket" else "",
        service=_service(path) if kind == "sentinel" else "",
        db=_database(path if kind in ("server", "cluster") else "", options.get("db"), kind),
        username=username,
        password=password,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=tls,
        tls_options=_tls_options(options),
    )


def find_url_problems(url: str) -> list[str]:
    """What is wrong with an address, for the configuration's reader."""
    if url.startswith("memory:"):
        return ["memory:// is not supported: replicas would share nothing; embedded needs no Redis of yours either"]
    try:
        parse_redis_url(url)
    except RedisUrlError as error:
        return [str(error)]
    return []


def _kind(scheme: str) -> RedisKind:
    if scheme == "unix":
        return "socket"
    if scheme.endswith("+sentinel"):
        return "sentinel"
    return "cluster" if scheme.endswith("+cluster") else "server"


def _credentials(text: str) -> tuple[str | None, str | None]:
    username, _, password = text.partition(":")
    if username and not password:
        raise RedisUrlError("a user needs a password; a password without a user is written :password@")
    return unquote(username) or None, unquote(password) or None


def _hosts(text: str, kind: RedisKind) -> tuple[HostPort, ...]:
    if kind == "socket":
        if text:
            raise RedisUrlError("unix:// is followed by the whole path of a socket, as in unix:///run/redis.sock")
        return ()
    hosts = tuple(_host(one, _SENTINEL_PORT if kind == "sentinel" else _PORT) for one in text.split(","))
    if kind == "server" and len(hosts) > 1:
        raise RedisUrlError("several hosts are for redis+sentinel:// and redis+cluster://")
    return hosts


def _host(text: str, default: int) -> HostPort:
    if text.startswith("["):
        name, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise RedisUrlError("an IPv6 address stands in brackets, with the port behind them")
        colon, port = rest[:1], rest[1:]
    else:
        name, colon, port = text.partition(":")
    if not name:
        raise RedisUrlError("there is no host")
    if not colon:
        return unquote(name), default
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise RedisUrlError("a port is a number from 1 to 65535; in a password, : / ? # and @ must be written as %XX")
    return unquote(name), int(port)


def _socket_path(path: str) -> str:
    if not path:
        raise RedisUrlError("unix:// is followed by the whole path of a socket, as in unix:///run/redis.sock")
    return "/" + unquote(path)


def _service(path: str) -> str:
    if not path or "/" in path:
        raise RedisUrlError("the hosts are followed by the name that the Sentinels give the master, as in …/mymaster")
    return unquote(path)


def _database(path: str, option: str | None, kind: RedisKind) -> int:
    text = option if option is not None else path
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise RedisUrlError("the database is a number")
    if kind == "cluster" and int(text) != 0:
        raise RedisUrlError("a cluster has only database 0")
    return int(text)


def _options(query: str, kind: RedisKind, *, tls: bool) -> dict[str, str]:
    known = ("db", *(_SENTINEL_OPTIONS if kind == "sentinel" else ()), *(_TLS_OPTIONS if tls else ()))
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    # What is not known is not repeated: it may be the end of a password with a ? in it.
    if len(options) < len(pairs) or any(name not in known or not value for name, value in pairs):
        without_tls = "" if tls else "; those of TLS need a scheme with rediss"
        raise RedisUrlError(f"the options here are {', '.join(known)}, each once and with a value{without_tls}")
    return options


def _tls_options(options: Mapping[str, str]) -> dict[str, str | bool]:
    chosen: dict[str, str | bool] = {name: options[name] for name in _TLS_OPTIONS if name in options}
    if options.get("ssl_cert_reqs", "none") not in ("none", "optional", "required"):
        raise RedisUrlError("ssl_cert_reqs is none, optional or required")
    if "ssl_check_hostname" in options:
        wanted = _BOOLEANS.get(options["ssl_check_hostname"].lower())
        if wanted is None:
            raise RedisUrlError("ssl_check_hostname is true or false")
        chosen["ssl_check_hostname"] = wanted
    return chosen
