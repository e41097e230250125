"""A cluster and an engine on it, as `ray_driver` needs them; `ray_cluster` has Ray's."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from engines.placement.ray_request import Placement, RayNode


class ClusterError(Exception):
    """The cluster cannot run the engine; the message is one line with the reason."""


class PlacedEngine(Protocol):
    """An engine's process that Ray has placed, or is about to.

    - `node` waits up to `timeout` seconds, and returns None if it has no node by then.
    - `start` returns the port that the engine will listen on.
    - `read` waits up to `timeout` seconds for output or the exit code.
    - `stop` and `remove` return at once; `remove` also frees the resources.
    - All but these two raise ClusterError when the actor or its node has died.
    """

    def node(self, timeout: float) -> str | None: ...
    def start(self, argv: Sequence[str], env: Mapping[str, str | None], folder: str, host: str) -> int: ...
    def read(self, timeout: float) -> tuple[bytes, int | None]: ...
    def stop(self, grace_period: float) -> None: ...
    def remove(self) -> None: ...


class Cluster(Protocol):
    """`nodes` are those that live; `free` are the resources that are free on all of them together."""

    @property
    def address(self) -> str: ...
    def nodes(self) -> Sequence[RayNode]: ...
    def free(self) -> Mapping[str, float]: ...
    def place(self, placement: Placement) -> PlacedEngine: ...
