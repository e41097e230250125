"""The command `roundhouse` as a process of its own, for tests."""

import asyncio
import json
import os
import pty
import sys
from typing import Any, NamedTuple

from tests.support.waiting import TEST_TIMEOUT


class CommandResult(NamedTuple):
    """What a command came to: its exit code, and what it wrote."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """Standard output as one piece of JSON."""
        return json.loads(self.stdout)

    def json_lines(self) -> list[Any]:
        """Standard output as JSON, line by line."""
        return [json.loads(line) for line in self.stdout.splitlines()]


async def run_cli(*arguments: object, stdin: bytes = b"") -> CommandResult:
    """Runs the command, away from any terminal. Raises TimeoutError where it does not end."""
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
    """Runs the command at a terminal at which something is typed once it was asked; `err` is what it shows."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *map(str, arguments),
        stdin=theirs, stdout=asyncio.subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"},
        start_new_session=True,  # else the terminal of whoever runs the tests would be asked
    )  # fmt: skip
    os.close(theirs)
    shown: list[bytes] = []
    answered: list[bytes] = []
    over = asyncio.get_running_loop().create_future()

    def read() -> None:
        try:
            shown.append(os.read(ours, 65536))
            if reply not in answered and prompt in b"".join(shown):
                answered.append(reply)
                os.write(ours, reply)
        except OSError:  # how Linux says that nobody holds the other end any more
            asyncio.get_running_loop().remove_reader(ours)
            over.set_result(None)

    asyncio.get_running_loop().add_reader(ours, read)
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            out, _ = await process.communicate()
            await over
    except BaseException:
        process.kill()
        raise
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
    assert process.returncode is not None
    return CommandResult(process.returncode, out.decode(), b"".join(shown).decode())
