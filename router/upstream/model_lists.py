"""Reads the engines' /v1/models: their kind, their context length, and their LoRA adapters."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from router.net.client.errors import EngineError
from router.net.tasks import cancel_and_wait
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.engine_kinds import MODELS_PATH, parse_model_list

log = logging.getLogger("roundhouse.engines")

MAX_LIST: Final = 4 << 20
"""Bytes of a list that are read."""

REFRESH_INTERVAL: Final = 10.0
"""Seconds between two reads of an engine that is up, whose adapters may have changed without this router."""

KEY_CHECK_INTERVAL: Final = 3.0
"""Seconds between two reads of an engine with a key, which without requests only its list shows to be wrong.

So every second check reads the list: a key that the engine no longer accepts is reported within 5 seconds. A read
without an answer is repeated after as long.
"""

MIN_REREAD_INTERVAL: Final = 1.0
"""Seconds between the starts of two rereads: clients can cause them by requests for an adapter that is gone."""

_OK: Final = 200


class _LastRead(NamedTuple):
    """When it began, whether it had an answer, and whether any has had one since the engine came up."""

    at: float
    is_answered: bool
    is_known: bool


class ModelListReader:
    """Keeps what the engines' lists tell up to date.

    - `read_first` is for an engine that comes up: what its list does not tell is unknown from then on.
    - `refresh` reads the list of an engine that stays up if it `is_due`: once in `interval`, or once in
      KEY_CHECK_INTERVAL if that is less and it has a key or the last read had no answer. A failure changes nothing.
    """

    def __init__(
        self, catalog: Catalog, client: EngineClient, *, timeout: float = 2.0, interval: float = REFRESH_INTERVAL
    ) -> None:
        """`timeout` of a read, and `interval` between two of an engine, in seconds."""
        self._interval = interval
        self._catalog = catalog
        self._client = client
        self._timeout = timeout
        self._last_reads: dict[str, _LastRead] = {}  # by engine

    async def read_first(self, engine: Engine) -> None:
        self._last_reads.pop(engine.name, None)
        engine.forget_parser()
        await self._read(engine, is_first=True)

    async def refresh(self, engine: Engine) -> None:
        if self.is_due(engine):
            last = self._last_reads.get(engine.name)
            await self._read(engine, is_first=last is None or not last.is_known)

    def is_due(self, engine: Engine) -> bool:
        last = self._last_reads.get(engine.name)
        if last is None or (engine.access.doubted and last.is_answered):
            return True
        if last.is_known and not engine.access.doubted and not engine.traits.lists_adapters:
            return False
        is_soon = engine.has_key or not last.is_answered
        interval = min(self._interval, KEY_CHECK_INTERVAL) if is_soon else self._interval
        return time.monotonic() - last.at >= interval

    async def reread(self, engine: Engine) -> bool:
        """Reads the adapters now; returns whether that was possible."""
        return await self._read(engine, is_first=False)

    async def _read(self, engine: Engine, *, is_first: bool) -> bool:
        now = time.monotonic()
        last = self._last_reads.get(engine.name)
        is_known = last is not None and last.is_known
        self._last_reads[engine.name] = _LastRead(now, is_answered=False, is_known=is_known)
        try:
            with await self._client.get(engine, MODELS_PATH, timeout=self._timeout) as response:
                status, page = response.status, await response.read(MAX_LIST)
        except EngineError as error:
            log.debug("cannot read the models of engine %s: %s", engine.name, error)
            if error.reason != "too-large" or not is_first:  # it would be at the next check, too
                return False
            status, page = _OK, b""
        latest = self._last_reads.get(engine.name)
        if latest is not None and latest.at > now and latest.is_answered:
            return True  # a later read was faster, and has a newer state
        engine.access.on_models(status, has_key=engine.has_key)
        is_known |= is_first or status == _OK
        self._last_reads[engine.name] = _LastRead(now, is_answered=status < 500, is_known=is_known)
        if status != _OK:
            if not is_first:
                return False
            page = b""
        listed = parse_model_list(page, engine.served_model)
        engine.learn_kind(listed.kind)
        if engine.discovers_max_model_len:
            engine.max_model_len = listed.max_model_len
        if listed.adapters != engine.adapters:
            if listed.ignored_adapters:
                log.warning(
                    "engine %s: %d listed adapters are ignored: too many, too long, or unprintable",
                    engine.name,
                    listed.ignored_adapters,
                )
            engine.adapters = listed.adapters
        self._catalog.update_adapters()
        return True


class AdapterRefresh:
    """Reads the lists of all engines at once, out of turn, in a task of its own.

    - `request` never waits. A read that begins after it tells the state after it.
    - Reads start at most once in MIN_REREAD_INTERVAL, however often they are requested.
    """

    def __init__(
        self, catalog: Catalog, reader: ModelListReader, *, on_read: Callable[[], None] = lambda: None
    ) -> None:
        """`on_read` is called after each read."""
        self._catalog = catalog
        self._reader = reader
        self._on_read = on_read
        self._is_requested = False
        self._started_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        self._is_requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._read_while_requested())

    async def aclose(self) -> None:
        await cancel_and_wait(self._task)

    async def _read_while_requested(self) -> None:
        while self._is_requested:
            if self._started_at is not None:
                await asyncio.sleep(self._started_at + MIN_REREAD_INTERVAL - time.monotonic())
            self._is_requested = False  # before the read: a request during the read causes another one
            self._started_at = time.monotonic()
            engines = [each for each in self._catalog.engines.values() if each.up and each.traits.lists_adapters]
            await asyncio.gather(*map(self._reader.reread, engines))
            self._on_read()
