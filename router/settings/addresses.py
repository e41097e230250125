"""Validates URLs of the configuration."""

from urllib.parse import urlsplit


def is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # Credentials would appear in logs, and are never sent; a query would end up before the paths of the API.
        return _is_plain(url) and named and "@" not in parts.netloc and not (parts.query or parts.fragment)
    except ValueError:  # an invalid port
        return False


def is_engine_url(url: str) -> bool:
    """Whether it is the URL of an HTTP server, or `unix://` and the absolute path of the server's socket."""
    if not url.startswith("unix://"):
        return is_http_url(url)
    path = url.removeprefix("unix://")
    return _is_plain(url) and path.startswith("/") and len(path) > 1 and "?" not in path and "#" not in path


def base_url(url: str) -> str:
    """The URL that the paths of the API follow: clients of OpenAI's API are given the same with a `/v1` at the end."""
    url = url.rstrip("/")
    base = url.removesuffix("/v1").rstrip("/")
    return url if base.endswith(":") else base  # a host may have that name


def _is_plain(url: str) -> bool:
    return url.isprintable() and " " not in url  # urlsplit would silently remove such characters
