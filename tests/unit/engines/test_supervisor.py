"""An engine that exits is started again; one that cannot start is given up."""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from engines.process import ManagedProcess, StartError
from engines.restarts import MAX_FAILED_STARTS
from engines.supervisor import EngineSupervisor, RestartRefusedError
from tests.support.waiting import eventually

RUNS = "import time; print('begun', flush=True); time.sleep(600)"
FAILS_WHILE_FILE_EXISTS = """
import pathlib, sys, time
if pathlib.Path(sys.argv[1]).exists():
    sys.exit(3)
time.sleep(600)
"""
LEAVES_A_CHILD = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
print(f"begun {child.pid}", flush=True)  # one write: a test reads the log once "begun" is there
time.sleep(600)
"""
IGNORES_SIGTERM = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("begun", flush=True)
time.sleep(600)
"""
OUT_OF_MEMORY = """
import sys, time
if "--gpu-memory-utilization" not in sys.argv:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
print("begun", flush=True)
time.sleep(600)
"""


class Supervised:
    """A supervisor of a Python program, whose waits before restarts are recorded and not waited for."""

    def __init__(self, folder: Path, program: str, *arguments: str, is_ready: Callable[[], bool]) -> None:
        async def ready() -> bool:
            return is_ready()

        async def sleep(delay: float) -> None:
            self.delays.append(delay)

        self.delays: list[float] = []
        self.events: list[str] = []
        self.restarted_pids: list[int] = []
        self.process = ManagedProcess("e0", [sys.executable, "-c", program, *arguments], folder / "e0.log")
        self.supervisor = EngineSupervisor(
            self.process, ready, ready_timeout=30, poll_interval=0.01, report=self.events.append, sleep=sleep,
            health_interval=0.01, unresponsive_after=0.05, on_restarted=self._on_restarted,
        )  # fmt: skip

    async def _on_restarted(self) -> None:
        self.restarted_pids.append(self.process.pid)

    async def stop(self) -> None:
        await self.process.stop()


@pytest_asyncio.fixture
async def supervise(tmp_path: Path) -> AsyncIterator[Callable[..., Supervised]]:
    created: list[Supervised] = []

    def create(program: str, *arguments: str, is_ready: Callable[[], bool] | None = None) -> Supervised:
        def has_begun() -> bool:
            return "begun" in (tmp_path / "e0.log").read_text()

        def is_running_and_ready() -> bool:
            return supervised.process.is_running and (is_ready or has_begun)()

        supervised = Supervised(tmp_path, program, *arguments, is_ready=is_running_and_ready)
        created.append(supervised)
        return supervised

    yield create
    for supervised in created:
        await supervised.stop()


async def test_an_engine_that_is_killed_is_started_again_with_growing_delays(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise(RUNS)
    await supervised.supervisor.start()
    running = asyncio.ensure_future(supervised.supervisor.run())

    def was_ready_again(times: int) -> bool:
        return supervised.events.count("e0 is ready again") == times

    for number in range(1, 4):
        os.kill(supervised.process.pid, signal.SIGKILL)
        await eventually(partial(was_ready_again, number))
    running.cancel()
    assert supervised.delays == [1, 2, 4]
    assert supervised.events[0].startswith("e0 was ended by SIGKILL; its log: ")
    assert supervised.events[1] == "e0: restart in 1 s"
    assert len(set(supervised.restarted_pids)) == 3, "each restart is passed on, the first start is not"


async def test_an_engine_that_cannot_start_any_more_is_given_up(
    supervise: Callable[..., Supervised], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    supervised = supervise(FAILS_WHILE_FILE_EXISTS, str(broken), is_ready=lambda: not broken.exists())
    await supervised.supervisor.start()
    broken.touch()
    os.kill(supervised.process.pid, signal.SIGKILL)
    running = asyncio.ensure_future(supervised.supervisor.run())
    await eventually(lambda: "is not started again" in "".join(supervised.events[-1:]))
    assert len(supervised.delays) == MAX_FAILED_STARTS
    assert supervised.events[-1].startswith("e0 is not started again: it ended 3 times in a row before it was ready")
    with pytest.raises(StartError, match="ended with code 3"):
        await supervised.supervisor.restart()
    broken.unlink()
    await supervised.supervisor.restart()
    assert supervised.events[-1] == "e0 is ready again"
    running.cancel()


async def test_a_requested_restart_replaces_the_process_without_a_delay(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise(RUNS)
    await supervised.supervisor.start()
    running = asyncio.ensure_future(supervised.supervisor.run())
    pid = supervised.process.pid
    await supervised.supervisor.restart()
    assert supervised.process.pid != pid
    assert not _runs(pid)
    assert supervised.events == ["e0: restarting on request", "e0 is ready again"]
    os.kill(supervised.process.pid, signal.SIGKILL)
    await eventually(lambda: supervised.events.count("e0 is ready again") == 2)
    assert supervised.delays == [1], "the requested restart counts as no exit"
    running.cancel()


async def test_a_requested_restart_ends_the_wait_after_an_exit(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = supervise(RUNS)
    monkeypatch.setattr(supervised.supervisor, "_sleep", lambda _: asyncio.Event().wait())
    await supervised.supervisor.start()
    running = asyncio.ensure_future(supervised.supervisor.run())
    os.kill(supervised.process.pid, signal.SIGKILL)
    await eventually(lambda: "e0: restart in 1 s" in supervised.events)
    await supervised.supervisor.restart()
    assert supervised.events[-1] == "e0 is ready again"
    running.cancel()


async def test_a_restart_is_refused_while_one_is_under_way(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise(RUNS)
    await supervised.supervisor.start()
    running = asyncio.ensure_future(supervised.supervisor.run())
    first = asyncio.ensure_future(supervised.supervisor.restart())
    await asyncio.sleep(0)
    with pytest.raises(RestartRefusedError, match="e0 is being started already"):
        await supervised.supervisor.restart()
    await first
    running.cancel()


async def test_a_restart_under_way_is_cancelled_with_the_supervision(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise(RUNS)
    await supervised.supervisor.start()
    running = asyncio.ensure_future(supervised.supervisor.run())
    await asyncio.sleep(0)
    request = asyncio.ensure_future(supervised.supervisor.restart())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([request])
    assert request.cancelled()


async def test_a_first_start_that_fails_leaves_nothing_running(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise("raise SystemExit('no such model')")
    with pytest.raises(StartError, match="no such model"):
        await supervised.supervisor.start()
    assert supervised.delays == []


async def test_a_start_without_enough_gpu_memory_is_tried_once_more_with_less(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise(OUT_OF_MEMORY)
    await supervised.supervisor.start()
    assert supervised.events == [
        "e0: the GPU has too little free memory; trying once more with --gpu-memory-utilization 0.82"
    ]
    assert supervised.delays == [1], "the memory of the first try may not be free at once"
    assert "CUDA out of memory" in supervised.process.log.with_name("e0.log.1").read_text()


async def test_a_second_start_without_enough_gpu_memory_fails(supervise: Callable[..., Supervised]) -> None:
    supervised = supervise("raise SystemExit('CUDA out of memory')")
    with pytest.raises(StartError, match="CUDA out of memory"):
        await supervised.supervisor.start()
    assert len(supervised.events) == 1


async def test_an_engine_that_hangs_is_killed_and_started_again(supervise: Callable[..., Supervised]) -> None:
    hangs = False

    def answers() -> bool:
        return not hangs or "e0 was ended by SIGKILL" in "".join(supervised.events)

    supervised = supervise(RUNS, is_ready=answers)
    await supervised.supervisor.start()
    pid = supervised.process.pid
    running = asyncio.ensure_future(supervised.supervisor.run())
    hangs = True
    await eventually(lambda: "e0 is ready again" in supervised.events)
    running.cancel()
    assert supervised.events[0].startswith("e0 failed its health checks for ")
    assert supervised.process.pid != pid


async def test_a_start_that_is_cancelled_does_not_wait_for_the_process_to_end(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise(IGNORES_SIGTERM, is_ready=lambda: False)
    starting = asyncio.ensure_future(supervised.supervisor.start())
    await eventually(lambda: supervised.process.is_running and "begun" in supervised.process.log.read_text())
    starting.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert starting.cancelled()
    supervised.process.kill()  # as `up` does at the second Ctrl-C


async def test_failed_checks_around_a_suspension_of_this_process_kill_nothing(
    supervise: Callable[..., Supervised],
) -> None:
    failures: list[str] = []
    successes = itertools.count()

    def is_healthy() -> bool:
        if failures:
            time.sleep(0.1)
            failures.pop()
            return False
        next(successes)
        return True

    supervised = supervise(RUNS, is_ready=is_healthy)
    await supervised.supervisor.start()
    failures += ["before the suspension", "after it"]
    running = asyncio.ensure_future(supervised.supervisor.run())
    await eventually(lambda: not failures)
    seen = next(successes)
    await eventually(lambda: next(successes) > seen + 10)
    running.cancel()
    assert supervised.events == []


async def test_a_process_that_answers_at_the_address_already_is_no_engine_that_is_ready(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = supervise("raise SystemExit('address already in use')")

    async def answers() -> bool:
        return True

    monkeypatch.setattr(supervised.supervisor, "_is_ready", answers)
    with pytest.raises(StartError, match="e0: another process answers at its address"):
        await supervised.supervisor.start()
    assert not supervised.process.is_running


async def test_an_unexpected_failure_of_a_restart_does_not_end_the_supervision(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = supervise(RUNS)
    await supervised.supervisor.start()
    running = asyncio.ensure_future(supervised.supervisor.run())
    failures = [RuntimeError("can't start new thread")]
    start = supervised.process.start

    async def fail_once() -> None:
        if failures:
            raise failures.pop()
        await start()

    monkeypatch.setattr(supervised.process, "start", fail_once)
    os.kill(supervised.process.pid, signal.SIGKILL)
    await eventually(lambda: "e0 is ready again" in supervised.events)
    assert any("can't start new thread" in event for event in supervised.events)
    assert supervised.delays == [1, 2]
    running.cancel()


async def test_a_health_check_that_raises_counts_as_failed(
    supervise: Callable[..., Supervised], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = supervise(RUNS)
    await supervised.supervisor.start()

    async def broken_check() -> bool:
        raise RuntimeError("no sockets left")

    monkeypatch.setattr(supervised.supervisor, "_is_ready", broken_check)
    running = asyncio.ensure_future(supervised.supervisor.run())
    await eventually(lambda: any("failed its health checks" in event for event in supervised.events))
    assert not running.done()
    running.cancel()


async def test_children_that_outlive_the_engine_are_ended_before_its_restart(
    supervise: Callable[..., Supervised],
) -> None:
    supervised = supervise(LEAVES_A_CHILD)
    await supervised.supervisor.start()
    child = int(supervised.process.log.read_text().split()[1])
    running = asyncio.ensure_future(supervised.supervisor.run())
    os.kill(supervised.process.pid, signal.SIGKILL)
    await eventually(lambda: "e0 is ready again" in supervised.events)
    running.cancel()
    await eventually(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    """Whether such a process exists; a zombie, which nobody may have waited for yet, does not count."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False
