"""The replicas of an engine of the configuration, and where each publishes its KV events."""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from router.settings.tables import EngineSettings

HOST = "{host}"
"""In `kv_events`, the host of a replica's URL."""


class Replica(NamedTuple):
    """`name`: as in headers and metrics."""

    name: str
    url: str

    @property
    def id(self) -> str:
        """What it is identified by, whatever its name."""
        return self.url


def replicas(engine: EngineSettings) -> Sequence[Replica]:
    urls = engine.addresses
    if len(urls) == 1:
        return [Replica(engine.name, urls[0])]
    return [Replica(f"{engine.name}.{number}", url) for number, url in enumerate(urls, 1)]


def kv_endpoint(endpoint: str, replica: Replica) -> str:
    """Where this replica publishes its KV events, or sends them again."""
    host = urlsplit(replica.url).hostname or "127.0.0.1"  # none: a socket of this machine
    return endpoint.replace(HOST, f"[{host}]" if ":" in host else host)


def is_bound_here(endpoint: str) -> bool:
    """Whether the router binds it, and the engine connects: one side must bind, and vLLM does it by the same rule."""
    return "*" in endpoint
