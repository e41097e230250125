"""Puts engines to sleep, and wakes them up, by the URLs or commands of the configuration."""

import asyncio
import contextlib
import os
import signal
import tempfile
from typing import IO, Final

from router.core.printable import escape_unprintable
from router.net.client.errors import EngineError, describe_cause
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.sleep.engine_sleep import Check, SleepError

_TIMEOUT: Final = 600.0  # seconds
_READY_INTERVAL: Final = 0.5  # seconds between two checks whether the engine answers
_CHECK_TIMEOUT: Final = 5.0  # seconds
_MAX_ANSWER: Final = 64 << 10  # bytes
_MAX_MESSAGE: Final = 200  # bytes of what a command writes before it fails


class SleepByCalls:
    """A URL gets a POST without a body; anything else is a command of the shell, which must end with status 0.

    The engine is awake when its health check succeeds.
    """

    def __init__(self, client: EngineClient, *, sleep: str, wake: str) -> None:
        self._client = client
        self._sleep = sleep
        self._wake = wake

    async def sleep(self, engine: Engine, check: Check) -> None:
        check()
        await self._call("sleep", self._sleep)

    async def wake(self, engine: Engine, check: Check) -> None:
        check()
        await self._call("wake", self._wake)
        try:
            async with asyncio.timeout(_TIMEOUT):
                while not await self._is_healthy(engine):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(_READY_INTERVAL)
        except TimeoutError:
            raise SleepError(f"it does not answer its health check within {_TIMEOUT:g} s of `wake`") from None

    async def is_sleeping(self, engine: Engine) -> bool | None:
        # A server that has unloaded its model may be healthy, too.
        return None if await self._is_healthy(engine) else True

    async def _is_healthy(self, engine: Engine) -> bool:
        try:
            with await self._client.get(engine, engine.traits.health, timeout=_CHECK_TIMEOUT) as response:
                await response.read_up_to(_MAX_ANSWER)
                return 200 <= response.status < 300
        except EngineError:
            return False

    async def _call(self, name: str, target: str) -> None:
        if target.lower().startswith(("http://", "https://")):
            await self._post(name, target)
        else:
            await _run(name, target)

    async def _post(self, name: str, url: str) -> None:
        try:
            with await self._client.post_url(url, timeout=_TIMEOUT) as response:
                await response.read_up_to(_MAX_ANSWER)
        except EngineError as error:
            raise SleepError(f"`{name}`: {describe_cause(error)}") from error
        if not 200 <= response.status < 300:
            raise SleepError(f"`{name}`: status {response.status}")


async def _run(name: str, command: str) -> None:
    # A file and not a pipe: a server that the command leaves in the background would keep a pipe open.
    with tempfile.TemporaryFile() as errors:
        try:
            process = await asyncio.create_subprocess_shell(
                command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise SleepError(f"`{name}`: the command cannot be started: {error}") from error
        try:
            async with asyncio.timeout(_TIMEOUT):
                await process.wait()
        except TimeoutError:
            raise SleepError(f"`{name}`: the command has not ended within {_TIMEOUT:g} s") from None
        finally:
            # Also after a cancellation: another process may decide by now, and would run the same command.
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            raise SleepError(f"`{name}`: the command has ended with status {process.returncode}{_end_of(errors)}")


def _end_of(errors: IO[bytes]) -> str:
    """The last line that a command has written, for a message."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - _MAX_MESSAGE))
    lines = errors.read(_MAX_MESSAGE).decode("utf-8", "replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {escape_unprintable(last.strip())}" if last else ""
