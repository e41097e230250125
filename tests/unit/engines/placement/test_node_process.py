"""The engine's process on a node, without Ray: only the actor's methods."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engines.placement.node_process import _MAX_BUFFER, NodeProcess
from tests.support.waiting import TEST_TIMEOUT

PRINT_ARGUMENTS = "import sys; print(*sys.argv[1:])"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"

Start = Callable[..., NodeProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[NodeProcess] = []

    def run(program: str, env: dict[str, str | None] | None = None, folder: str = str(tmp_path)) -> NodeProcess:
        process = NodeProcess()
        started.append(process)
        process.start([sys.executable, "-c", program], env or {}, folder, "127.0.0.1")
        return process

    yield run
    for process in started:
        process.stop(0)
        read_all(process)


def read_all(process: NodeProcess) -> tuple[str, int]:
    output = b""
    while True:
        chunk, code = process.read(10)
        output += chunk
        if code is not None:
            return output.decode(), code


def wait_for(process: NodeProcess, text: str) -> None:
    output = b""
    while text.encode() not in output:
        chunk, code = process.read(10)
        output += chunk
        assert code is None, output


def test_it_listens_on_the_nodes_address_and_a_free_port(tmp_path: Path) -> None:
    process = NodeProcess()
    port = process.start([sys.executable, "-c", PRINT_ARGUMENTS], {}, str(tmp_path), "127.0.0.1")
    assert read_all(process) == (f"--host 127.0.0.1 --port {port}\n", 0)
    assert 0 < port < 65536


def test_its_output_and_exit_code_are_read(start: Start) -> None:
    output, code = read_all(start("import sys; print('out'); sys.stdout.flush(); sys.exit('err')"))
    assert output == "out\nerr\n"
    assert code == 1


def test_its_environment_is_the_nodes_with_additions_and_removals(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_NODE", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program = "import os; print(os.environ['OF_THE_NODE'], os.environ['MORE'], 'CUDA_VISIBLE_DEVICES' in os.environ)"
    assert read_all(start(program, {"MORE": "2", "CUDA_VISIBLE_DEVICES": None}))[0] == "1 2 False\n"


def test_it_runs_in_the_folder_if_the_node_has_it(start: Start, tmp_path: Path) -> None:
    program = "import os; print(os.getcwd())"
    assert read_all(start(program))[0] == f"{tmp_path.resolve()}\n"
    assert read_all(start(program, folder="/no/such/folder"))[0] == f"{Path.cwd()}\n"


def test_a_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NodeProcess().start(["/no/such/program"], {}, str(tmp_path), "127.0.0.1")


def test_a_read_ends_after_its_timeout(start: Start) -> None:
    assert start("import time; time.sleep(600)").read(0.01) == (b"", None)


def test_output_that_nobody_reads_is_bounded_and_does_not_block_the_engine(start: Start) -> None:
    process = start(f"import sys; sys.stdout.write('x' * {2 * _MAX_BUFFER} + 'end')")
    with process._changed:
        assert process._changed.wait_for(lambda: process._exit_code is not None, 30)
    output, code = read_all(process)
    assert code == 0
    assert len(output) == _MAX_BUFFER
    assert output.endswith("end")


def test_stopping_kills_after_the_grace_period(start: Start) -> None:
    process = start(STUBBORN)
    wait_for(process, "ready")
    process.stop(0.05)
    assert read_all(process)[1] == -signal.SIGKILL


def test_a_stop_does_not_wait_for_a_read(start: Start) -> None:
    process = start("import time; time.sleep(600)")
    codes: list[int] = []
    reader = threading.Thread(target=lambda: codes.append(read_all(process)[1]))
    reader.start()
    process.stop(10)
    reader.join(10)
    assert codes == [-signal.SIGTERM]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has pidfd_open")
def test_its_children_end_too_when_the_actors_process_dies(tmp_path: Path) -> None:
    # In one write, whatever PYTHONUNBUFFERED says: the actor reads once.
    engine = "import os, time; os.fork() or (os.write(1, b'%d\\n' % os.getpid()), time.sleep(600)); time.sleep(600)"
    actor = f"""
import sys, time
from engines.placement.node_process import NodeProcess
process = NodeProcess()
process.start([sys.executable, "-c", {engine!r}], {{}}, {str(tmp_path)!r}, "127.0.0.1")
print(process.read(60)[0].decode(), end="", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", actor], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        try:
            assert select.select([parent.stdout], [], [], TEST_TIMEOUT)[0]
            descriptor = os.pidfd_open(int(parent.stdout.readline()))
        finally:
            parent.kill()
    with os.fdopen(descriptor) as exited:
        assert has_exited(exited.fileno())


def has_exited(descriptor: int) -> bool:
    """Whether the process of this pidfd exits within some seconds."""
    return bool(select.select([descriptor], [], [], 10)[0])
