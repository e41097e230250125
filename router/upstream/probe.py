"""Checks the engines periodically: whether they are up, and what their own metrics report."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Final, TypeVar, cast

from router.core.plural import pluralize
from router.core.resilience.signs_of_life import CheckResult
from router.net.client.errors import MAX_CAUSE, EngineError, describe_cause, is_refused
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.engine import Engine, EngineGauges
from router.upstream.engine_gauges import parse_gauges
from router.upstream.engine_kinds import MODELS_PATH
from router.upstream.model_lists import ModelListReader

log = logging.getLogger("roundhouse.engines")

T = TypeVar("T")

MAX_PAGE: Final = 4 << 20
"""Bytes of an engine's page (health, metrics, models) that are read."""

_OK: Final = 200
_UP: Final = (_OK, 429)  # an API that limits the rate of the checks answers
_NO_SUCH_PATH: Final = (401, 403, 404, 405, 501)  # a server may refuse a path that it does not have, too


class EngineProbe:
    """Keeps the catalog's engines up to date.

    - `last_check`: when the last round ended, in seconds since the epoch; None before the first.
    - `on_round` is called after every round, and `on_up` as soon as an engine that was down is up: the check of another
      engine may take longer.
    - The requests that wait for an engine that is down move to another one, see router.core.resilience.signs_of_life.
    - An engine that refuses the router's key is not up, even if its health needs no key: its list of models does.
    - An engine that cannot be checked because this machine lacks a resource keeps its state.
    """

    def __init__(
        self,
        catalog: Catalog,
        client: EngineClient,
        *,
        interval: float = 2.0,
        timeout: float = 2.0,
        on_round: Callable[[], None] = lambda: None,
        on_up: Callable[[Engine], None] = lambda _: None,
        model_lists: ModelListReader | None = None,
    ) -> None:
        """`interval` between two rounds and `timeout` per engine, in seconds."""
        self._catalog = catalog
        self._client = client
        self._interval = interval
        self._timeout = timeout
        self._on_round = on_round
        self._on_up = on_up
        self.last_check: float | None = None
        self._model_lists = model_lists or ModelListReader(catalog, client, timeout=timeout)
        self._shared: dict[tuple[str, str], asyncio.Task[Any]] = {}  # by URL and path, what the round has asked for
        self._last_checks: dict[str, tuple[float, bool]] = {}  # when it was, and whether the engine was up

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        self._shared = {}
        await asyncio.gather(*(self._check_engine(engine) for engine in self._catalog.engines.values()))
        self.last_check = time.time()
        self._on_round()

    async def _check_engine(self, engine: Engine) -> None:
        now = time.monotonic()
        checked_at, was_up = self._last_checks.get(engine.name, (-inf, False))
        # A request may have found it down since.
        is_recent = now - checked_at < engine.traits.check_interval
        if is_recent and engine.up is was_up and not engine.access.doubted:
            return
        deadline = now + self._timeout  # all requests share it
        up = False
        cause = ""
        result = CheckResult.DOWN
        gauges = EngineGauges()
        try:
            status = await self._health_status(engine, deadline)
            up = status in _UP
            cause = f"status {status}"
            if up:
                gauges = await self._gauges(engine, deadline)
                cause = ""
        except (EngineError, ValueError) as error:
            log.debug("engine %s: %s", engine.name, error)
            if isinstance(error, EngineError) and error.reason == "local":
                return  # no request was sent, so the engine's state is unchanged
            cause = describe_cause(error) if isinstance(error, EngineError) else str(error)
            if isinstance(error, EngineError):
                engine.access.reset()
            if isinstance(error, EngineError) and is_refused(error):
                result = CheckResult.CLOSED
        counters = None if up and cause else gauges.progress  # if it is up, the cause is of its metrics
        if up and engine.up:
            await self._model_lists.refresh(engine)
        elif up:
            await self._model_lists.read_first(engine)  # what comes up may differ
        refused = engine.access.refused is not None
        answers = up or refused
        up = up and not refused
        self._last_checks[engine.name] = (now, up)
        was_down = engine.up is False
        engine.update_status(up=up, cause=cause)
        engine.update_gauges(gauges)
        # One that refuses the router's key still generates what it has begun.
        was_unknown = engine.watch.signs.is_progress_unknown
        engine.watch.on_check(CheckResult.UP if answers else result, gauges.running, counters)
        if engine.watch.signs.is_progress_unknown is not was_unknown:
            _log_progress(engine, cause)
        self._abort_lost(engine)
        if up and was_down:
            self._on_up(engine)

    def _abort_lost(self, engine: Engine) -> None:
        """If another engine can take over, ends what waits for an engine that is down."""
        # Without another one, there is nothing to gain: this one may be back before the timeouts.
        if engine.watch.has_lost_requests and self._catalog.has_other(engine):
            count = engine.watch.abort_lost()
            if count:
                leave = pluralize(count, "request leaves", "requests leave")
                log.warning("engine %s does not answer its checks; %s it", engine.name, leave)

    async def _health_status(self, engine: Engine, deadline: float) -> int:
        status = await self._health_once(engine, deadline)
        if status in _NO_SUCH_PATH and engine.learn(health=MODELS_PATH):  # not every server has /health
            status = await self._health_once(engine, deadline)
        engine.access.on_health(status)
        return status

    async def _health_once(self, engine: Engine, deadline: float) -> int:
        return await self._once_a_round(engine, engine.traits.health, self._health(engine, deadline))

    async def _health(self, engine: Engine, deadline: float) -> int:
        timeout = deadline - time.monotonic()
        with await self._client.get(engine, engine.traits.health, timeout=timeout) as response:
            await response.read_up_to(MAX_PAGE)  # a list of models may be longer; the status says enough
            return response.status

    async def _gauges(self, engine: Engine, deadline: float) -> EngineGauges:
        if not engine.traits.has_metrics:
            return EngineGauges()
        status, page = await self._once_a_round(engine, "/metrics", self._fetch(engine, "/metrics", deadline))
        if status in _NO_SUCH_PATH and not engine.watch.signs.has_had_counters:
            engine.learn(has_metrics=False)
        elif status != _OK:
            raise ValueError(f"status {status}")
        return parse_gauges(page.decode("utf-8", "replace"), engine.rank)

    async def _once_a_round(self, engine: Engine, path: str, read: Coroutine[Any, Any, T]) -> T:
        """The data-parallel ranks of a server share what it answers."""
        if engine.rank is None:
            return await read
        key = engine.url, path
        if (task := self._shared.get(key)) is None:
            task = self._shared[key] = asyncio.get_running_loop().create_task(read)
        else:
            read.close()
        return cast(T, await task)

    async def _fetch(self, engine: Engine, path: str, deadline: float) -> tuple[int, bytes]:
        with await self._client.get(engine, path, timeout=deadline - time.monotonic()) as response:
            return response.status, await response.read(MAX_PAGE)


def _log_progress(engine: Engine, cause: str) -> None:
    """`cause`: why its metrics cannot be read; empty if they only have no counters any more."""
    if engine.watch.signs.is_progress_unknown:
        log.warning(
            "engine %s: its counters cannot be read from /metrics (%s), so it is unknown whether it makes progress; "
            "first_token and between_tokens limit silence from the last byte",
            engine.name, cause[:MAX_CAUSE] or "they are missing",
        )  # fmt: skip
    else:
        log.info("engine %s: its counters can be read from /metrics", engine.name)
