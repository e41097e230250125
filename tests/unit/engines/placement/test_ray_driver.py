"""The driver of an engine on a Ray cluster, with a scripted cluster in place of Ray."""

import io
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from engines.placement.cluster import Cluster, ClusterError
from engines.placement.ray_driver import Driver, Job, StopRequest, connect
from engines.placement.ray_request import RAY_EXECUTOR, Placement, RayNode, RayRequest

NODES = [RayNode("a", "10.0.0.1", {"CPU": 8.0, "GPU": 1.0}), RayNode("b", "fd00::2", {"CPU": 8.0, "GPU": 1.0})]
Read = tuple[bytes, int | None]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ScriptedProcess:
    """Has `node_id` after `placed_after` seconds; `reads` are the results of `read`."""

    def __init__(self, clock: Clock, reads: Sequence[Read | Exception], node_id: str, placed_after: float) -> None:
        self.clock = clock
        self.reads: Iterator[Read | Exception] = iter(reads)
        self.node_id = node_id
        self.placed_after = placed_after
        self.started: tuple[list[str], dict[str, str | None], str] | None = None
        self.stops: list[float] = []
        self.is_removed = False

    def node(self, timeout: float) -> str | None:
        self.clock.now += timeout
        return self.node_id if self.clock.now >= self.placed_after else None

    def start(self, argv: Sequence[str], env: Mapping[str, str | None], folder: str, host: str) -> int:
        self.started = ([*argv], {**env}, host)
        return 4242

    def read(self, timeout: float) -> Read:
        result = next(self.reads, (b"", None))
        if isinstance(result, Exception):
            raise result
        if result == (b"", None):
            self.clock.now += timeout
        return result

    def stop(self, grace_period: float) -> None:
        self.stops.append(grace_period)

    def remove(self) -> None:
        self.is_removed = True


class ScriptedCluster:
    address = "10.0.0.1:6379"

    def __init__(self, engine: ScriptedProcess) -> None:
        self.engine = engine
        self.placement: Placement | None = None

    def nodes(self) -> list[RayNode]:
        return NODES

    def free(self) -> Mapping[str, float]:
        return {"CPU": 16.0}

    def place(self, placement: Placement) -> ScriptedProcess:
        self.placement = placement
        return self.engine


class Run:
    """A driver with its surroundings; calling it runs the driver."""

    def __init__(
        self, folder: Path, reads: Sequence[Read | Exception] = ((b"", 0),), *, gpus: int = 1, node_id: str = "a",
        placed_after: float = 0.0,
    ) -> None:  # fmt: skip
        self.clock = Clock()
        self.engine = ScriptedProcess(self.clock, reads, node_id, placed_after)
        self.cluster = ScriptedCluster(self.engine)
        self.stop = StopRequest()
        self.url = folder / "url"
        self._output = io.BytesIO()
        self._job = Job(
            request=RayRequest(gpus), env={"OURS": "1"}, url_file=str(self.url), connect_timeout=0,
            placement_timeout=60, grace_period=10,
        )  # fmt: skip

    def __call__(self) -> int:
        driver = Driver(self._job, self.cluster, self.stop, self._output, self.clock)
        return driver.run(["vllm", "--model", "m"])

    @property
    def output(self) -> str:
        return self._output.getvalue().decode()


def test_it_passes_on_what_the_engine_prints_and_how_it_ends(tmp_path: Path) -> None:
    run = Run(tmp_path, [(b"loading\n", None), (b"failed\n", None), (b"", 3)])
    assert run() == 3
    assert run.output.splitlines() == [
        "roundhouse: asking Ray for 1 CPU, 1 GPU", "roundhouse: running on the Ray node 10.0.0.1", "loading", "failed",
    ]  # fmt: skip
    assert run.engine.started == (["vllm", "--model", "m"], {"OURS": "1"}, "10.0.0.1")
    assert run.engine.is_removed


def test_the_url_is_that_of_its_node(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run()
    assert run.url.read_text() == "http://10.0.0.1:4242"
    run = Run(tmp_path, node_id="b")
    run()
    assert run.url.read_text() == "http://[fd00::2]:4242"


def test_an_engine_ended_by_a_signal_gives_the_exit_code_of_a_shell(tmp_path: Path) -> None:
    run = Run(tmp_path, [(b"", -signal.SIGKILL)])
    assert run() == 128 + signal.SIGKILL
    assert run.output.endswith("the engine was ended by SIGKILL\n")


def test_a_node_that_dies_ends_the_driver(tmp_path: Path) -> None:
    run = Run(tmp_path, [(b"serving\n", None), ClusterError("its Ray actor or node has died")])
    with pytest.raises(ClusterError):
        run()
    assert run.engine.is_removed


def test_a_request_that_no_node_can_take_fails_with_what_the_cluster_has(tmp_path: Path) -> None:
    run = Run(tmp_path, placed_after=1e9)
    with pytest.raises(ClusterError) as raised:
        run()
    shortage = "no Ray node has 1 CPU, 1 GPU free: 10.0.0.1 has 8 CPU, 1 GPU, fd00::2 has 8 CPU, 1 GPU"
    assert str(raised.value) == f"not placed after 60 s: {shortage}; free in all: 16 CPU, 0 GPU"
    assert run.output.count(f"waiting: {shortage}") == 1, "the log says early why it waits"
    assert run.engine.is_removed


def test_an_engine_is_placed_as_soon_as_a_node_is_free(tmp_path: Path) -> None:
    run = Run(tmp_path, placed_after=59)
    assert run() == 0


def test_a_stop_request_ends_the_wait_for_a_node(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.stop.grace_period = 10
    assert run() == 128 + signal.SIGTERM
    assert run.engine.started is None
    assert run.engine.is_removed


def test_a_stop_request_stops_the_engine_once_and_waits_for_its_exit(tmp_path: Path) -> None:
    run = Run(tmp_path, [(b"", None), (b"bye\n", None), (b"", -signal.SIGTERM)])
    stop_at(run, after_reads=1, grace_period=10)
    assert run() == 128 + signal.SIGTERM
    assert run.engine.stops == [10]
    assert "bye" in run.output


def test_a_kill_overrides_a_stop(tmp_path: Path) -> None:
    run = Run(tmp_path, [])
    stop_at(run, after_reads=1, grace_period=10)
    stop_at(run, after_reads=3, grace_period=0)
    assert run() == 128 + signal.SIGKILL, "the exit code of an engine whose exit was not seen in time"
    assert run.engine.stops == [10, 0]
    assert run.clock.now < 10


def stop_at(run: Run, *, after_reads: int, grace_period: float) -> None:
    reading = run.engine.read
    count = 0

    def read(timeout: float) -> Read:
        nonlocal count
        count += 1
        if count == after_reads:
            run.stop.grace_period = grace_period
        return reading(timeout)

    run.engine.read = read  # type: ignore[method-assign]  # scripted


def test_a_model_for_several_nodes_gets_vllms_ray_executor_and_the_clusters_address(tmp_path: Path) -> None:
    run = Run(tmp_path, gpus=2)
    run()
    assert run.cluster.placement == Placement({"CPU": 1.0, "GPU": 0.0}, RAY_EXECUTOR, "a")
    assert run.engine.started is not None
    argv, env, _ = run.engine.started
    assert argv == ["vllm", "--model", "m", "--distributed-executor-backend", "ray"]
    assert env == {"OURS": "1", "RAY_ADDRESS": "10.0.0.1:6379", "CUDA_VISIBLE_DEVICES": None}


@pytest.mark.parametrize(("timeout", "tries"), [(0.0, 1), (12.0, 4)])
def test_a_cluster_that_cannot_be_reached_is_tried_until_the_timeout(
    tmp_path: Path, timeout: float, tries: int
) -> None:
    clock, tried = Clock(), 0

    def fail() -> Cluster:
        nonlocal tried
        tried += 1
        raise ClusterError("there is no Ray cluster")

    def sleep(seconds: float) -> None:
        clock.now += seconds

    with pytest.raises(ClusterError):
        connect(fail, timeout, clock, sleep)
    assert tried == tries
    cluster = Run(tmp_path).cluster
    assert connect(lambda: cluster, timeout, clock, sleep) is cluster
