"""In which format a scraper wants /metrics.

Sources: RFC 9110, section 12.5.1 (Accept); https://prometheus.io/docs/instrumenting/content_negotiation/.
"""

from typing import Final

MAX_ACCEPT: Final = 4096
"""Characters of an Accept header; of a longer one, the rest is ignored."""

_OPENMETRICS: Final = "application/openmetrics-text"
_VERSIONS: Final = ("", "1.0.0")


def prefers_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.0 is accepted, and no less than the text format. A wildcard alone means the text format."""
    openmetrics, text = 0.0, 0.0
    for media_range in accept[:MAX_ACCEPT].split(","):
        name, *fields = (part.strip().lower() for part in media_range.split(";"))
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in (f.partition("=") for f in fields)}
        quality = _parse_quality(parameters.get("q", "1"))
        if name == _OPENMETRICS and parameters.get("version", "") in _VERSIONS:
            openmetrics = max(openmetrics, quality)
        elif name == "text/plain":
            text = max(text, quality)
    return openmetrics > 0 and openmetrics >= text


def _parse_quality(text: str) -> float:
    """A weight from 0 to 1; 0 if it is invalid."""
    try:
        quality = float(text)
    except ValueError:
        return 0.0
    return quality if 0 <= quality <= 1 else 0.0
