"""`python -m engines.placement.ray_driver -- COMMAND`: runs an engine on a Ray cluster as if it were here.

It places the engine's process, writes the engine's output to its own, and exits when the engine has exited or its node
has died. SIGTERM stops the engine, SIGUSR1 kills it. If this process dies, Ray ends the engine.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from engines.placement.cluster import Cluster, ClusterError, PlacedEngine
from engines.placement.ray_request import (
    Placement,
    RayNode,
    RayRequest,
    decide_placement,
    describe_resources,
    describe_shortage,
)
from engines.process import describe_exit

JOB_VARIABLE: Final = "ROUNDHOUSE_RAY_JOB"
"""The environment variable with the Job in JSON. Not an argument: it may contain secrets, and others can read those."""

_POLL: Final = 0.5  # seconds; how long a call may keep a signal waiting
_SHORTAGE_NOTE_AFTER: Final = 10.0
_CONNECT_INTERVAL: Final = 5.0
_KILL_TIMEOUT: Final = 5.0  # seconds until the exit of a killed engine must be known


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: `env` is added to the node's environment, and the URL is written to `url_file`.

    `connect_timeout`, `placement_timeout` and `grace_period` are in seconds. The first try to connect is not bounded by
    `connect_timeout`: with 0, there is no other.
    """

    request: RayRequest
    env: dict[str, str]
    url_file: str
    connect_timeout: float
    placement_timeout: float
    grace_period: float


class StopRequest:
    """Set by a signal: the grace period to stop with, in seconds; None while nothing is to be stopped."""

    def __init__(self) -> None:
        self.grace_period: float | None = None


class Driver:
    """Runs one engine."""

    def __init__(
        self, job: Job, cluster: Cluster, stop: StopRequest, output: BinaryIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._job = job
        self._cluster = cluster
        self._stop = stop
        self._output = output
        self._clock = clock

    def run(self, argv: Sequence[str]) -> int:
        """Returns the exit code, which is 128 plus the signal if one ended the engine. Raises ClusterError."""
        placement = decide_placement(self._job.request, self._cluster.nodes())
        engine = self._cluster.place(placement)
        try:
            node = self._wait_for_node(engine, placement)
            if node is None:
                return 128 + signal.SIGTERM
            port = engine.start(
                [*argv, *placement.options], self._environment(placement), str(Path.cwd()), node.address
            )
            self._note(f"running on the Ray node {node.address}")
            _write_url(Path(self._job.url_file), node.address, port)
            code = self._pass_output_on(engine)
        finally:
            engine.remove()
        if code >= 0:
            return code  # the last line of the log stays the engine's, which says more
        self._note(f"the engine {describe_exit(code)}")
        return 128 - code

    def _wait_for_node(self, engine: PlacedEngine, placement: Placement) -> RayNode | None:
        """None if it is to be stopped first."""
        asked, timeout = placement.resources, self._job.placement_timeout
        self._note(f"asking Ray for {describe_resources(asked)}")
        begin, is_noted = self._clock(), False
        while self._stop.grace_period is None:
            node_id = engine.node(_POLL)
            waited = self._clock() - begin
            nodes = self._cluster.nodes()
            found = next((node for node in nodes if node.id == node_id), None)
            if found is not None:
                return found
            if waited > timeout:
                shortage = describe_shortage(asked, nodes, self._cluster.free())
                raise ClusterError(f"not placed after {timeout:g} s: {shortage}")
            if waited > _SHORTAGE_NOTE_AFTER and not is_noted:
                self._note(f"waiting: {describe_shortage(asked, nodes, self._cluster.free())}")
                is_noted = True
        return None

    def _environment(self, placement: Placement) -> dict[str, str | None]:
        if not placement.options:
            return {**self._job.env}
        # vLLM connects to this cluster, and its server needs to see the node's GPUs though it has reserved none.
        return {"RAY_ADDRESS": self._cluster.address, "CUDA_VISIBLE_DEVICES": None, **self._job.env}

    def _pass_output_on(self, engine: PlacedEngine) -> int:
        """The engine's exit code."""
        asked: float | None = None
        deadline = float("inf")
        while self._clock() < deadline:
            output, code = engine.read(_POLL)
            self._output.write(output)
            self._output.flush()
            if code is not None:
                return code
            grace_period = self._stop.grace_period
            if grace_period is not None and (asked is None or grace_period < asked):
                engine.stop(grace_period)
                asked, deadline = grace_period, self._clock() + grace_period + _KILL_TIMEOUT
        return -signal.SIGKILL  # by the removal of its actor, if it was not killed yet

    def _note(self, text: str) -> None:
        self._output.write(f"roundhouse: {text}\n".encode())
        self._output.flush()


def _write_url(file: Path, host: str, port: int) -> None:
    address = f"[{host}]" if ":" in host else host
    new = file.with_name(f"{file.name}.new")
    new.write_text(f"http://{address}:{port}")
    new.replace(file)  # so that nobody reads half of it


def connect(
    try_once: Callable[[], Cluster], timeout: float,
    clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
) -> Cluster:  # fmt: skip
    """Tries it until it succeeds; raises the last ClusterError after `timeout` seconds."""
    deadline = clock() + timeout
    while True:
        try:
            return try_once()
        except ClusterError:
            if clock() >= deadline:
                raise
        sleep(_CONNECT_INTERVAL)


def _connect_to_ray() -> Cluster:
    try:
        from engines.placement.ray_cluster import RayCluster
    except ImportError as error:
        if error.name != "ray":
            raise
        raise ClusterError('placement = "ray" needs Ray: pip install "roundhouse-router[ray]"') from None
    return RayCluster()


def main(argv: Sequence[str]) -> int:
    job = msgspec.json.decode(os.environ.pop(JOB_VARIABLE), type=Job)
    stop = StopRequest()
    try:
        cluster = connect(_connect_to_ray, job.connect_timeout)
        # Only now: until here a signal ends this process, which has placed nothing; and Ray sets a handler of its own.
        for number, grace_period in ((signal.SIGTERM, job.grace_period), (signal.SIGUSR1, 0.0)):
            signal.signal(number, lambda *_, seconds=grace_period: setattr(stop, "grace_period", seconds))
        return Driver(job, cluster, stop, sys.stdout.buffer).run(argv)
    except ClusterError as error:
        sys.stdout.write(f"roundhouse: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("--") + 1 :]))
