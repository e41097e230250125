"""One process of the tree: started, awaited, and stopped with its children."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engines.process import ManagedProcess, StartError, describe_exit
from tests.support.waiting import TEST_TIMEOUT, eventually

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print('child', flush=True); time.sleep(600)"])
print("pid", child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


class Started:
    """Starts Python programs as managed processes, and stops them after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[ManagedProcess] = []

    async def run(self, program: str, env: dict[str, str] | None = None) -> ManagedProcess:
        child = ManagedProcess("it", [sys.executable, "-c", program], self.folder / "logs" / "it.log", env)
        self.children.append(child)
        await child.start()
        return child


@pytest_asyncio.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    started = Started(tmp_path)
    yield started
    for child in started.children:
        child.kill()
        await child.wait()


def is_alive(pid: int) -> bool:
    """Whether such a process exists; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_its_output_is_in_its_log_which_starts_empty(started: Started) -> None:
    log = started.folder / "logs" / "it.log"
    log.parent.mkdir()
    log.write_text("of an earlier run\n")
    child = await started.run("import sys; print('out'); print('err', file=sys.stderr)")
    assert await child.wait() == 0
    assert sorted(log.read_text().split()) == ["err", "out"]


async def test_its_environment_extends_ours(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "1")
    child = await started.run("import os; print(os.environ['OURS'], os.environ['MORE'])", {"MORE": "2"})
    await child.wait()
    assert child.log.read_text() == "1 2\n"


async def test_a_process_that_was_stopped_gets_no_more_signals(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await started.run(STUBBORN)
    child.kill()
    await child.stop()
    signalled: list[int] = []
    monkeypatch.setattr("engines.process.os.killpg", lambda group, _: signalled.append(group))
    child.kill()
    await child.stop()
    child.argv = ["/no/such/program"]
    with pytest.raises(StartError):
        await child.start()
    await child.stop()
    assert signalled == [], "another process group may have its id by now"


async def test_it_is_ready_when_the_check_succeeds(started: Started) -> None:
    child = await started.run(STUBBORN)
    check_count = 0

    async def ready() -> bool:
        nonlocal check_count
        check_count += 1
        return "ready" in child.log.read_text()

    await child.wait_until_ready(ready, timeout=TEST_TIMEOUT, interval=0.01)
    assert check_count >= 1


async def is_never_ready() -> bool:
    return False


async def test_a_process_that_ends_before_it_is_ready_reports_its_last_line(started: Started) -> None:
    child = await started.run("import sys; print('one'); print('the reason'); print(); sys.exit(3)")
    with pytest.raises(StartError) as raised:
        await child.wait_until_ready(is_never_ready, timeout=TEST_TIMEOUT)
    assert str(raised.value) == (
        f"it: ended with code 3 before it was ready; its last line: the reason (full log: {child.log})"
    )


async def test_a_process_that_is_not_ready_in_time_reports_where_its_log_is(started: Started) -> None:
    child = await started.run(STUBBORN)
    with pytest.raises(StartError, match=r"^it: not ready after 0\.05 s; its log: .*it\.log$"):
        await child.wait_until_ready(is_never_ready, timeout=0.05, interval=0.01)


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    child = ManagedProcess("it", ["/no/such/program"], tmp_path / "it.log")
    with pytest.raises(StartError, match=r"^it: cannot start /no/such/program: No such file or directory$"):
        await child.start()
    await child.stop()


async def test_stopping_ends_child_processes_too(started: Started) -> None:
    child = await started.run(PARENT)
    grandchild = int(await eventually(lambda: _pid_in(child.log)))
    assert is_alive(grandchild)
    await child.stop()
    assert await child.wait() == -signal.SIGTERM
    await eventually(lambda: not is_alive(grandchild))


def _pid_in(log: Path) -> str:
    words = log.read_text().split()
    return words[words.index("pid") + 1] if "child" in words and "pid" in words else ""


async def test_a_process_that_ignores_the_signal_is_killed_after_the_grace_period(started: Started) -> None:
    child = await started.run(STUBBORN)
    await eventually(lambda: "ready" in child.log.read_text())
    await child.stop(grace_period=0.05)
    assert await child.wait() == -signal.SIGKILL


async def test_killing_lets_a_waiting_stop_return(started: Started) -> None:
    child = await started.run(STUBBORN)
    await eventually(lambda: "ready" in child.log.read_text())
    stopping = asyncio.ensure_future(child.stop(grace_period=600))
    await asyncio.sleep(0)
    child.kill()
    await asyncio.wait_for(stopping, TEST_TIMEOUT)


async def test_stopping_a_process_that_ended_or_never_started_does_nothing(started: Started, tmp_path: Path) -> None:
    child = await started.run("pass")
    await child.wait()
    await child.stop()
    await ManagedProcess("it", ["true"], tmp_path / "it.log").stop()


async def test_a_ctrl_c_on_the_terminal_does_not_reach_it(started: Started) -> None:
    child = await started.run(STUBBORN)
    assert os.getsid(child.pid) == child.pid
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sends a process a signal when its parent dies")
async def test_it_ends_when_its_parent_dies(tmp_path: Path) -> None:
    program = f"""
import asyncio, pathlib, sys, time
from engines.process import ManagedProcess

async def main():
    child = ManagedProcess("it", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
                  pathlib.Path({str(tmp_path)!r}) / "it.log")
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:  # noqa: ASYNC220 - returns at once
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        await eventually(lambda: (tmp_path / "it.log").read_text() == "up\n")
        parent.kill()
    await eventually(lambda: not is_alive(pid))


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "ended with code 0"), (3, "ended with code 3"), (-9, "was ended by SIGKILL"), (-99, "was ended by signal 99")],
)
def test_an_exit_code_is_described_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words
