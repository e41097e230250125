"""Addresses as people write them in a configuration: can they be used?"""

from urllib.parse import urlsplit


def is_http_url(url: str) -> bool:
    """Whether it is the address of an HTTP server, without credentials."""
    try:
        parts = urlsplit(url)
        plain = url.isprintable() and " " not in url  # else urlsplit would quietly mend it
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        return plain and named and "@" not in parts.netloc  # credentials would be shown, and never sent
    except ValueError:  # a port that is no number
        return False
