"""What an engine asks of a Ray cluster, and where it fits."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

RAY_EXECUTOR: Final = ("--distributed-executor-backend", "ray")
"""vLLM's option to place its workers by Ray, on several nodes."""

_LISTED_NODES: Final = 8


class RayRequest(msgspec.Struct, frozen=True):
    """`gpus` is what the model needs in all; `resources` are Ray's, and replace what follows from `gpus`."""

    gpus: int
    resources: dict[str, float] = {}

    @property
    def on_one_node(self) -> dict[str, float]:
        """Ray's resources for an engine on one node. A CPU keeps nodes without any free of engines."""
        return {"CPU": 1.0, "GPU": float(self.gpus)} | self.resources


class RayNode(msgspec.Struct, frozen=True):
    """A living node of the cluster: its id, its IP address, and its resources, whether free or not."""

    id: str
    address: str
    resources: Mapping[str, float]

    @property
    def gpus(self) -> float:
        return self.resources.get("GPU", 0.0)


class Placement(msgspec.Struct, frozen=True):
    """How to place an engine: the resources to reserve for it, and options to add to its command.

    `node` is the id of the node to prefer; None leaves that to Ray.
    """

    resources: dict[str, float]
    options: tuple[str, ...] = ()
    node: str | None = None


def decide_placement(request: RayRequest, nodes: Sequence[RayNode]) -> Placement:
    """On one node if one has that many GPUs. If only several together do, vLLM places its workers by Ray.

    vLLM then reserves the GPUs itself, so none are reserved for its server. The server runs on a node with GPUs, since
    it reads their properties.
    """
    largest = max(nodes, key=lambda node: node.gpus, default=None)
    if largest is None or request.gpus <= largest.gpus or request.gpus > sum(node.gpus for node in nodes):
        return Placement(request.on_one_node)
    return Placement(request.on_one_node | {"GPU": 0.0}, RAY_EXECUTOR, largest.id)


def describe_shortage(asked: Mapping[str, float], nodes: Sequence[RayNode], free: Mapping[str, float]) -> str:
    """Why nothing was placed, for a person: what was asked for, what the nodes have, and what of that is free."""
    names = [name for name, amount in asked.items() if amount]
    listed = [f"{node.address} has {describe_resources(node.resources, names)}" for node in nodes[:_LISTED_NODES]]
    if len(nodes) > _LISTED_NODES:
        listed.append(f"{len(nodes) - _LISTED_NODES} more")
    return (
        f"no Ray node has {describe_resources(asked, names)} free: {', '.join(listed) or 'there is no node'}; "
        f"free in all: {describe_resources(free, names)}"
    )


def describe_resources(resources: Mapping[str, float], names: Sequence[str] | None = None) -> str:
    """As in "1 CPU, 2 GPU"; `names` selects some, also those that are missing."""
    shown = [name for name, amount in resources.items() if amount] if names is None else names
    return ", ".join(f"{resources.get(name, 0.0):g} {name}" for name in shown) or "nothing"
