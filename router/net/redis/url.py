"""The URLs that `cache.url` accepts, parsed and validated.

    redis://[user:password@]host[:port][/db]                               one server; rediss:// with TLS
    unix://[user:password@]/path/to/redis.sock[?db=0]                      one server on this machine
    redis+sentinel://[user:password@]host[:port][,host[:port]…]/service    the master of a service of Sentinels
    redis+cluster://[user:password@]host[:port][,host[:port]…]             a cluster, found through any of its servers

`rediss+sentinel://` and `rediss+cluster://` are the same with TLS. Options follow a `?` and have redis-py's names. No
error message of this module repeats any part of a URL: in a malformed URL every part may belong to a password.
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
"""A host name or IP address, and a port."""


class RedisUrlError(ValueError):
    """A URL that cannot be used. The message is one line and repeats no part of the URL."""


class RedisUrl(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed URL.

    - `hosts`: the server, the Sentinels, or some servers of the cluster; empty for a Unix socket.
    - `path`: the Unix socket. `service`: the Sentinels' name for the master.
    - `username`, `password`: for the servers that hold the keys. `sentinel_username`, `sentinel_password`: for the
      Sentinels, which have separate users.
    - `tls`: whether all connections are encrypted. `tls_options`: redis-py's options for that.
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

    @property
    def public_url(self) -> str:
        """The URL without users, passwords and options, for people."""
        if self.kind == "socket":
            return f"unix://{self.path}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind == "server" else f"+{self.kind}")
        hosts = ",".join(f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name, port in self.hosts)
        path = self.service or (str(self.db) if self.db else "")
        return f"{scheme}://{hosts}{'/' if path else ''}{path}"


def parse_redis_url(url: str) -> RedisUrl:
    """Raises RedisUrlError."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise RedisUrlError(f"expected embedded, {', '.join(f'{known}://' for known in SCHEMES)}")
    if not url.isprintable() or any(character in url for character in " #"):
        raise RedisUrlError("white space and # must be written as %20 and %23")
    target, _, query = rest.partition("?")
    location, _, path = target.partition("/")
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
    """The error messages for a URL in the configuration; empty if it is valid."""
    if url.startswith("memory:"):
        return ["memory:// is not supported, since replicas could not share it; embedded starts a private Redis"]
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
        raise RedisUrlError("a user needs a password; write a password without a user as :password@")
    return unquote(username) or None, unquote(password) or None


def _hosts(text: str, kind: RedisKind) -> tuple[HostPort, ...]:
    if kind == "socket":
        if text:
            raise RedisUrlError("unix:// needs the absolute path of a socket, as in unix:///run/redis.sock")
        return ()
    hosts = tuple(_host(host, _SENTINEL_PORT if kind == "sentinel" else _PORT) for host in text.split(","))
    if kind == "server" and len(hosts) > 1:
        raise RedisUrlError("only redis+sentinel:// and redis+cluster:// accept several hosts")
    return hosts


def _host(text: str, default: int) -> HostPort:
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise RedisUrlError("write an IPv6 address in brackets, followed by the port")
        separator, port = rest[:1], rest[1:]
    else:
        name, separator, port = text.partition(":")
    if not name:
        raise RedisUrlError("the host is missing")
    if not separator:
        return unquote(name), default
    # Six digits are enough to see that a port is too large; int() refuses strings of thousands of digits.
    if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise RedisUrlError("a port must be from 1 to 65535; in a password, : / ? # and @ must be written as %XX")
    return unquote(name), int(port)


def _socket_path(path: str) -> str:
    if not path:
        raise RedisUrlError("unix:// needs the absolute path of a socket, as in unix:///run/redis.sock")
    return "/" + unquote(path)


def _service(path: str) -> str:
    if not path or "/" in path:
        raise RedisUrlError("the name of the Sentinel master must follow the hosts, as in …/mymaster")
    return unquote(path)


def _database(path: str, option: str | None, kind: RedisKind) -> int:
    text = option if option is not None else path
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        raise RedisUrlError("the database must be a number")
    if kind == "cluster" and int(text) != 0:
        raise RedisUrlError("a cluster has only database 0")
    return int(text)


def _options(query: str, kind: RedisKind, *, tls: bool) -> dict[str, str]:
    known = ("db", *(_SENTINEL_OPTIONS if kind == "sentinel" else ()), *(_TLS_OPTIONS if tls else ()))
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    # An unknown option is not repeated in the message: it may be the end of a password that contains a `?`.
    if len(options) < len(pairs) or any(name not in known or not value for name, value in pairs):
        without_tls = "" if tls else "; TLS options need a rediss scheme"
        raise RedisUrlError(f"the known options are {', '.join(known)}, each once and with a value{without_tls}")
    return options


def _tls_options(options: Mapping[str, str]) -> dict[str, str | bool]:
    tls_options: dict[str, str | bool] = {name: options[name] for name in _TLS_OPTIONS if name in options}
    if options.get("ssl_cert_reqs", "none") not in ("none", "optional", "required"):
        raise RedisUrlError("ssl_cert_reqs must be none, optional or required")
    if "ssl_check_hostname" in options:
        check_hostname = _BOOLEANS.get(options["ssl_check_hostname"].lower())
        if check_hostname is None:
            raise RedisUrlError("ssl_check_hostname must be true or false")
        tls_options["ssl_check_hostname"] = check_hostname
    return tls_options
