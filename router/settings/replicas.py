"""The replicas of an engine of the configuration, and where each publishes its KV events.

A server with several data-parallel ranks counts as so many replicas: each rank has a prefix cache and a queue of its
own, and a request names the rank that it is for.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from router.settings.tables import EngineSettings

HOST: Final = "{host}"
"""In `kv_events`, the host of a replica's URL."""

RANK_HEADER: Final = "x-data-parallel-rank"
"""vLLM's, for chats and completions (vllm/entrypoints/generate/base/serving.py)."""


class Replica(NamedTuple):
    """`name`: as in headers and metrics. `rank`: the data-parallel rank; None if the server has only one."""

    name: str
    url: str
    rank: int | None = None

    @property
    def id(self) -> str:
        """What it is identified by, whatever its name."""
        return replica_id(self.url, self.rank)

    @property
    def headers(self) -> Mapping[str, str]:
        """Of each request to it."""
        return {} if self.rank is None else {RANK_HEADER: str(self.rank)}


def replica_id(url: str, rank: int | None) -> str:
    return url if rank is None else f"{url}#{rank}"


def replicas(engine: EngineSettings) -> Sequence[Replica]:
    ranks = [None] if engine.data_parallel == 1 else range(engine.data_parallel)
    servers = [(url, rank) for url in engine.addresses for rank in ranks]
    if len(servers) == 1:
        return [Replica(engine.name, *servers[0])]
    return [Replica(f"{engine.name}.{number}", url, rank) for number, (url, rank) in enumerate(servers, 1)]


def kv_endpoint(endpoint: str, replica: Replica) -> str:
    """Where this replica publishes its KV events, or sends them again. vLLM adds the rank to the port."""
    host = urlsplit(replica.url).hostname or "127.0.0.1"  # none: a socket of this machine
    endpoint = endpoint.replace(HOST, f"[{host}]" if ":" in host else host)
    if not replica.rank:
        return endpoint
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + replica.rank}"


def is_bound_here(endpoint: str) -> bool:
    """Whether the router binds it, and the engine connects: one side must bind, and vLLM does it by the same rule."""
    return "*" in endpoint
