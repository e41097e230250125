"""vLLM's `--kv-events-config`."""

from typing import Literal

import msgspec


class KvEventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-events-config`, with its defaults."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    """Batches that are kept for the replay."""
    hwm: int = 100_000
    """Batches that wait for a subscriber; further ones are dropped for it."""
    max_queue_size: int = 100_000
    """Of vLLM's queue before its publishing thread; has no effect here."""
    topic: str = ""

    @property
    def is_published(self) -> bool:
        return self.enable_kv_cache_events and self.publisher != "null"

    def for_rank(self, rank: int) -> "KvEventsConfig":
        """That of a data-parallel rank, which is added to the ports. Raises ValueError for endpoints without one."""
        replay = self.replay_endpoint
        return msgspec.structs.replace(
            self,
            endpoint=_of_rank(self.endpoint, rank),
            replay_endpoint=None if replay is None else _of_rank(replay, rank),
        )


def _of_rank(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if not endpoint.startswith("tcp:"):
        raise ValueError("Invalid endpoint: must contain 'inproc' or 'tcp'")
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}"


def parse_kv_events_config(text: str) -> KvEventsConfig:
    """Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        raise ValueError(f"--kv-events-config: {error}") from error
