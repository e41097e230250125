"""How an engine is put to sleep and woken up, by the server that it is."""

import json
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from router.net.client.errors import EngineError, describe_cause, is_refused
from router.upstream.client import EngineClient
from router.upstream.engine import Engine

_MAX_ANSWER: Final = 64 << 10  # bytes
_OK: Final = 200
_ASK_TIMEOUT: Final = 5.0  # seconds
_SLEEP_TIMEOUT: Final = 120.0  # seconds: requests of others run to their end first
_WAKE_TIMEOUT: Final = 600.0  # seconds: level 2 loads the weights


class SleepError(Exception):
    """The engine did not do it; the message says why."""


class NotDecidingError(Exception):
    """This process does not decide any more: another one may do something else by now."""


Check = Callable[[], None]
"""To be called before each call to an engine; raises NotDecidingError."""


class EngineSleep(Protocol):
    """Each method raises SleepError, and what `check` raises. What is done already is done again without harm."""

    async def sleep(self, engine: Engine, check: Check) -> None:
        """Returns when it sleeps. Its requests have run to their end."""

    async def wake(self, engine: Engine, check: Check) -> None:
        """Returns when it takes requests."""

    async def is_sleeping(self, engine: Engine) -> bool | None:
        """What it says itself; None if that cannot be asked."""


class VllmSleep:
    """By vLLM's development endpoints, which need VLLM_SERVER_DEV_MODE=1."""

    def __init__(self, client: EngineClient, level: int) -> None:
        """`level`: 1 keeps the weights in the memory of the machine, 2 loads them again."""
        self._client = client
        self._level = level

    async def sleep(self, engine: Engine, check: Check) -> None:
        check()
        try:
            # By default, vLLM would abort what runs.
            await self._post(engine, f"/sleep?level={self._level}&mode=wait", _SLEEP_TIMEOUT)
        except SleepError as error:
            # A process that is gone has no memory of the GPU, either.
            if isinstance(error.__cause__, EngineError) and is_refused(error.__cause__):
                return
            raise
        if not await self.is_sleeping(engine):
            raise SleepError("it says that it does not sleep")

    async def wake(self, engine: Engine, check: Check) -> None:
        # In one step, vLLM would run with weights that nobody has loaded.
        if self._level > 1 and await self.is_sleeping(engine):
            check()
            await self._post(engine, "/wake_up?tags=weights", _WAKE_TIMEOUT)
            check()
            body = json.dumps({"method": "reload_weights"}).encode()
            await self._post(engine, "/collective_rpc", _WAKE_TIMEOUT, body)
        check()
        await self._post(engine, "/wake_up", _WAKE_TIMEOUT)
        if await self.is_sleeping(engine):
            raise SleepError("it says that it still sleeps")

    async def is_sleeping(self, engine: Engine) -> bool:
        try:
            with await self._client.get(engine, "/is_sleeping", timeout=_ASK_TIMEOUT) as response:
                status, page = response.status, await response.read(_MAX_ANSWER)
        except EngineError as error:
            raise SleepError(describe_cause(error)) from error
        answer = _decoded(page) if status == _OK else None
        if not isinstance(answer, dict) or not isinstance(answer.get("is_sleeping"), bool):
            raise SleepError(f"/is_sleeping: status {status}")
        return bool(answer["is_sleeping"])

    async def _post(self, engine: Engine, path: str, timeout: float, body: bytes = b"") -> None:
        try:
            with await self._client.post_json(engine, path, body, timeout=timeout) as response:
                status = response.status
                await response.read(_MAX_ANSWER)
        except EngineError as error:
            raise SleepError(f"{path.partition('?')[0]}: {describe_cause(error)}") from error
        if status != _OK:
            raise SleepError(f"{path.partition('?')[0]}: status {status}")


def _decoded(page: bytes) -> Any:
    try:
        return msgspec.json.decode(page)
    except msgspec.MsgspecError:
        return None
