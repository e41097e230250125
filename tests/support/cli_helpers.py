"""Runs the command `roundhouse` in its own process, for tests."""

import asyncio
import json
import os
import pty
import sys
from typing import Any, NamedTuple

from tests.support.waiting import TEST_TIMEOUT


class CommandResult(NamedTuple):
    """The result of a command: its exit code and its output."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The one line of a command with one result."""
        (result,) = self.json_lines()
        return result

    def json_lines(self) -> list[Any]:
        """The form of every `--json`: each line is an object (docs/operating.md)."""
        results = [json.loads(line) for line in self.stdout.splitlines()]
        assert all(isinstance(result, dict) for result in results)
        return results


async def run_cli(*arguments: object, stdin: bytes = b"") -> CommandResult:
    """Runs the command without a terminal. Raises TimeoutError if it does not end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *map(str, arguments), stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            out, err = await process.communicate(stdin)
    except BaseException:
        process.kill()
        raise
    assert process.returncode is not None
    return CommandResult(process.returncode, out.decode(), err.decode())


async def run_cli_in_terminal(*arguments: object, prompt: bytes = b"", reply: bytes = b"") -> CommandResult:
    """Runs the command in a terminal and types `reply` once `prompt` is shown; `stderr` is the terminal's output."""
    master_fd, terminal_fd = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *map(str, arguments),
        stdin=terminal_fd, stdout=asyncio.subprocess.PIPE, stderr=terminal_fd, env={**os.environ, "TERM": "xterm"},
        start_new_session=True,  # else the prompt would appear in the terminal that runs the tests
    )  # fmt: skip
    # Only the child may hold the terminal, or the read below would never end.
    os.close(terminal_fd)
    output: list[bytes] = []
    replies_sent: list[bytes] = []
    closed = asyncio.get_running_loop().create_future()

    def read() -> None:
        try:
            output.append(os.read(master_fd, 65536))
            # The prompt can arrive in pieces, so all output is searched.
            if reply not in replies_sent and prompt in b"".join(output):
                replies_sent.append(reply)
                os.write(master_fd, reply)
        except OSError:  # EIO: Linux reports that every process has closed the terminal
            asyncio.get_running_loop().remove_reader(master_fd)
            closed.set_result(None)

    asyncio.get_running_loop().add_reader(master_fd, read)
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            out, _ = await process.communicate()
            # The output is complete only when the terminal is closed, which can be after the process ends.
            await closed
    except BaseException:
        process.kill()
        raise
    finally:
        asyncio.get_running_loop().remove_reader(master_fd)
        os.close(master_fd)
    assert process.returncode is not None
    return CommandResult(process.returncode, out.decode(), b"".join(output).decode())
