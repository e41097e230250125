"""Validates URLs of the configuration."""

from urllib.parse import urlsplit


def is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        plain = url.isprintable() and " " not in url  # urlsplit would silently remove such characters
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return plain and named and "@" not in parts.netloc  # credentials would appear in logs, and are never sent
    except ValueError:  # an invalid port
        return False
