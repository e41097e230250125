"""The engine's process on a node of the cluster.

Ray copies this module's code to the node, so it imports nothing of Roundhouse, which need not be installed there.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_MAX_BUFFER = 1 << 20  # bytes of output that are kept until they are read
_MAX_READ = 64 << 10
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


# Kills the process group of its argument when the actor has died or closes the pipe. It is a process without a parent,
# since Ray kills the children of an actor whose node is lost, and only those: engines have children of their own.
_GUARD = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGTERM)
    for _ in range(100):
        time.sleep(0.1)
        os.killpg(int(sys.argv[1]), 0)
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except (ProcessLookupError, PermissionError):
    pass
"""


class NodeProcess:
    """A Ray actor with one process, in a session of its own.

    - `start` returns the port that the engine listens on, which is free on this node.
    - `read` returns its output and, when it has exited and all is read, its exit code.
    - Output that is not read in time is dropped, the oldest first: the engine never waits for a reader.
    - `stop` ends its whole process group, with SIGKILL after the grace period.
    - When the actor's process dies, or the process exits, what is left of the group is ended in the same way.

    Ray calls the methods in threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._output = bytearray()
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._exit_code: int | None = None

    def node_id(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def start(self, argv: Sequence[str], env: Mapping[str, str | None], folder: str, host: str) -> int:
        """`env` is added to the node's environment; None removes a variable. Runs in `folder` if the node has it.

        Raises OSError if the program cannot be started.
        """
        port = _free_port(host)
        command = [*argv, "--host", host, "--port", str(port)]
        merged = {**os.environ, **env}
        variables = {name: value for name, value in merged.items() if value is not None}
        directory = folder if Path(folder).is_dir() else None
        # The kernel sends the parent-death signal when the thread that forked ends. This one lives until the exit.
        threading.Thread(target=self._run, args=(command, variables, directory), daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: self._process is not None or self._failure is not None)
            if self._failure is not None:
                raise self._failure
        return port

    def read(self, timeout: float) -> tuple[bytes, int | None]:
        """Waits up to `timeout` seconds for output or the exit."""
        with self._changed:
            self._changed.wait_for(lambda: self._output or self._exit_code is not None, timeout)
            output = bytes(self._output[:_MAX_READ])
            del self._output[:_MAX_READ]
            return output, None if self._output else self._exit_code

    def stop(self, grace_period: float) -> None:
        """`grace_period` in seconds between SIGTERM and SIGKILL."""
        self._signal(signal.SIGTERM)
        with self._changed:
            self._changed.wait_for(lambda: self._exit_code is not None, grace_period)
        self._signal(signal.SIGKILL)  # children that outlive it, or the process itself after the grace period

    def _run(self, argv: list[str], env: dict[str, str], folder: str | None) -> None:
        try:
            process = subprocess.Popen(  # noqa: S603 - no shell
                argv,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        except (OSError, subprocess.SubprocessError) as error:
            with self._changed:
                self._failure = error if isinstance(error, OSError) else OSError(str(error))
                self._changed.notify_all()
            return
        with self._changed:
            self._process = process
            self._changed.notify_all()
        guard_argv = [sys.executable, "-c", _GUARD, str(process.pid)]
        guard = subprocess.Popen(guard_argv, stdin=subprocess.PIPE)  # noqa: S603 - no shell
        guard.wait()  # its child goes on
        reader = threading.Thread(target=self._read_output, args=(process,), daemon=True)
        reader.start()
        code = process.wait()
        assert guard.stdin is not None
        guard.stdin.close()
        reader.join(1.0)  # the last lines; children may hold the pipe open for longer
        with self._changed:
            self._exit_code = code
            self._changed.notify_all()

    def _read_output(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as pipe:
            while chunk := os.read(pipe.fileno(), _MAX_READ):
                with self._changed:
                    self._output += chunk
                    del self._output[:-_MAX_BUFFER]
                    self._changed.notify_all()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port: int = server.getsockname()[1]
        return port


def _die_with_parent() -> None:
    """Runs in the child before exec: the kernel sends SIGTERM to it when the parent dies, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
