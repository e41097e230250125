"""Runs the command `roundhouse`, for tests: in a thread of the test, in a process, or in a process with a terminal."""

import asyncio
import json
import os
import pty
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn
from unittest import mock

import msgspec
from typer.testing import CliRunner

from engines import dry_run
from engines.plan import UpPlan
from engines.preflight import command as preflight
from router.cli import app
from router.process import serve
from tests.support.logging_state import logging_as_it_was
from tests.support.waiting import TEST_TIMEOUT

_ONE_AT_A_TIME: Final = threading.Lock()
"""The standard streams belong to the whole process."""


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
    """Runs the command in a thread, without a terminal. Raises TimeoutError if it does not end.

    The environment and the directory are those of the test. An error that would be a traceback is raised. What would
    replace the process is called in its place: the start of `serve`, as far as it fails, `up --dry-run` and
    `engines preflight`. A command that handles signals needs `run_cli_process`.
    """

    def run() -> CommandResult:
        with _ONE_AT_A_TIME, mock.patch("os.execv", _call_in_place), logging_as_it_was():
            result = CliRunner().invoke(
                app, list(map(str, arguments)), input=stdin, prog_name="roundhouse", catch_exceptions=False
            )
        return CommandResult(result.exit_code, result.stdout_bytes.decode(), result.stderr_bytes.decode())

    return await _in_daemon_thread(run)


async def _in_daemon_thread(function: Callable[[], CommandResult]) -> CommandResult:
    """Unlike asyncio.to_thread, a function that does not end does not keep the tests from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[CommandResult] = loop.create_future()

    def settle(outcome: CommandResult | BaseException) -> None:
        if result.cancelled():  # the time was over
            return
        if isinstance(outcome, BaseException):
            result.set_exception(outcome)
        else:
            result.set_result(outcome)

    def run() -> None:
        outcome: CommandResult | BaseException
        try:
            outcome = function()
        except BaseException as error:  # noqa: BLE001 - it is raised in the test
            outcome = error
        loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(TEST_TIMEOUT):
        return await result


def _call_in_place(_: str, argv: list[str]) -> NoReturn:
    """What os.execv would start, of `python -m MODULE ARGUMENTS`."""
    module, *arguments = argv[2:]
    if module == "router.process.serve":
        raise SystemExit(serve.main(arguments))
    command, *options = arguments
    with os.fdopen(int(options[-1]), "rb", closefd=False) as file:
        plan = msgspec.json.decode(file.read(), type=UpPlan)
    report = {"dry-run": dry_run.main, "preflight": preflight.main}[command]
    raise SystemExit(report(plan, as_json="--json" in options))


async def run_cli_process(*arguments: object, stdin: bytes = b"") -> CommandResult:
    """Runs the command in a process, without a terminal. Raises TimeoutError if it does not end."""
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


async def run_cli_into(output: int, *arguments: object) -> CommandResult:
    """Runs the command in a process whose standard output is this file descriptor."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(TEST_TIMEOUT):
            _, err = await process.communicate()
    except BaseException:
        process.kill()
        raise
    assert process.returncode is not None
    return CommandResult(process.returncode, "", err.decode())


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
