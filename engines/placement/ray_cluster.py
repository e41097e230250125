"""The Ray cluster as `ray_driver` uses it. Ray's exceptions become ClusterError here."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
import ray.cloudpickle
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engines.placement import node_process
from engines.placement.cluster import ClusterError
from engines.placement.ray_request import Placement, RayNode

_CONNECT_TIMEOUT: Final = 5.0  # seconds
_THREADS: Final = 4  # of an actor: `stop` must not wait for `read`


class RayEngine:
    """An engine's actor, see `cluster.PlacedEngine`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._node_id: Any = actor.node_id.remote()

    def node(self, timeout: float) -> str | None:
        try:
            return str(ray.get(self._node_id, timeout=timeout))
        except ray.exceptions.GetTimeoutError:
            return None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"Ray cannot place it: {_first_line(error)}") from None

    def start(self, argv: Sequence[str], env: Mapping[str, str | None], folder: str, host: str) -> int:
        try:
            return int(ray.get(self._actor.start.remote(argv, env, folder, host)))
        except OSError as error:  # a RayTaskError is also an instance of what was raised
            raise ClusterError(f"cannot start {argv[0]} on {host}: {os.strerror(error.errno or 0)}") from None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"its Ray actor on {host} failed: {_first_line(error)}") from None

    def read(self, timeout: float) -> tuple[bytes, int | None]:
        try:
            output, code = ray.get(self._actor.read.remote(timeout))
        except ray.exceptions.ActorUnavailableError:  # the connection broke; Ray finds out whether the node is dead
            return b"", None
        except ray.exceptions.RayError as error:
            raise ClusterError(f"its Ray actor or node has died: {_first_line(error)}") from None
        return output, code

    def stop(self, grace_period: float) -> None:
        self._actor.stop.remote(grace_period)

    def remove(self) -> None:
        ray.kill(self._actor)


class RayCluster:
    """The cluster at RAY_ADDRESS, or the one that a `ray start` on this machine belongs to.

    Raises ClusterError if there is none.
    """

    def __init__(self) -> None:
        address = os.environ.get("RAY_ADDRESS", "auto")
        _check_reachable(address)
        try:
            ray.init(address=address, namespace="roundhouse", log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            where = "on this machine" if address == "auto" else f"at RAY_ADDRESS ({address})"
            message = f"there is no Ray cluster {where}; run `ray start`, see docs/running-engines.md"
            raise ClusterError(f"{message} ({_first_line(error)})") from None

    @property
    def address(self) -> str:
        return str(ray.get_runtime_context().gcs_address)

    def nodes(self) -> list[RayNode]:
        return [
            RayNode(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
            for node in ray.nodes()
            if node["Alive"]
        ]

    def free(self) -> Mapping[str, float]:
        return dict(ray.available_resources())

    def place(self, placement: Placement) -> RayEngine:
        resources = dict(placement.resources)
        options: dict[str, Any] = {"num_cpus": resources.pop("CPU", 0.0), "num_gpus": resources.pop("GPU", 0.0)}
        if placement.node is not None:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(placement.node, soft=True)
        # By value, so that the nodes need no Roundhouse.
        ray.cloudpickle.register_pickle_by_value(node_process)
        actor = ray.remote(node_process.NodeProcess)
        return RayEngine(actor.options(**options, resources=resources, max_concurrency=_THREADS).remote())


def _check_reachable(address: str) -> None:
    """Ray itself waits for minutes. An address without a port is left to Ray, as are those with a scheme."""
    host, _, port = address.rpartition(":")
    if "/" in address or not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"RAY_ADDRESS ({address}) cannot be reached: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
