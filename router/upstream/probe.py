"""Checks the engines periodically: whether they are up, and what their own metrics report."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Final, NamedTuple, TypeVar, cast

from router.core.plural import pluralize
from router.core.resilience.signs_of_life import CheckResult
from router.net.client.errors import MAX_CAUSE, EngineError, describe_cause, is_refused
from router.net.tasks import cancel_and_wait
from router.upstream.catalog import Catalog
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.engine_gauges import EngineGauges, parse_gauges
from router.upstream.engine_kinds import MODELS_PATH
from router.upstream.model_lists import ModelListReader

log = logging.getLogger("roundhouse.engines")

T = TypeVar("T")

MAX_PAGE: Final = 4 << 20
"""Bytes of an engine's page (health, metrics, models) that are read."""

_OK: Final = 200
_UP: Final = (_OK, 429)  # an API that limits the rate of the checks answers
_NO_SUCH_PATH: Final = (401, 403, 404, 405, 501)  # a server may refuse a path that it does not have, too


class _Outcome(NamedTuple):
    """What a check has shown. `cause`: why the engine is not up; if it is, why its metrics cannot be read."""

    result: CheckResult
    cause: str = ""
    gauges: EngineGauges = EngineGauges()

    @property
    def up(self) -> bool:
        return self.result is CheckResult.UP


class EngineProbe:
    """Keeps the catalog's engines up to date.

    - `last_check`: when the last round ended, in seconds since the epoch; None before the first.
    - `on_round` is called after every round, and `on_up` as soon as an engine that was down is up: the check of another
      engine may take longer.
    - The requests that wait for an engine that is down move to another one, see router.core.resilience.signs_of_life.
    - An engine that refuses the router's key is not up, even if its health needs no key: its list of models does.
    - No round but the first waits for the list of an engine that was up or refused: see `_read_list`.
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
        self._list_reads: dict[str, asyncio.Task[None]] = {}  # by engine, at most one at a time

    async def run(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def check(self) -> None:
        self._shared = {}
        await asyncio.gather(*(self._check_engine(engine) for engine in self._catalog.engines.values()))
        if self.last_check is None:  # the engines may be those of a configuration that this one replaces
            await asyncio.gather(*self._list_reads.values())
        self.last_check = time.time()
        self._on_round()

    async def check_one(self, engine: Engine) -> None:
        """Checks this engine now: it may be up again."""
        self._last_checks.pop(engine.name, None)
        await self._check_engine(engine)

    async def aclose(self) -> None:
        """To be called when `run` and `check` have ended."""
        await cancel_and_wait(*self._list_reads.values())

    async def _check_engine(self, engine: Engine) -> None:
        now = time.monotonic()
        checked_at, was_up = self._last_checks.get(engine.name, (-inf, False))
        # A request may have found it down since.
        is_recent = now - checked_at < engine.traits.check_interval
        if is_recent and engine.up is was_up and not engine.access.doubted:
            return
        was_down = engine.up is False
        outcome = await self._ask(engine, now + self._timeout)
        if outcome is None or (outcome.up and _was_found_down(engine, was_down)):
            return
        if engine.rest:
            # Others have its GPU: it gets no requests, whatever it answers. Those that it has are still watched.
            engine.update_status(up=False)
            engine.update_gauges(outcome.gauges)
            self._watch(engine, outcome)
            return
        if outcome.up and (engine.up or engine.access.refused is not None):
            self._start_list_read(engine)
        else:
            self._cancel_list_read(engine)
            if outcome.up:
                await self._model_lists.read_first(engine)  # what comes up may differ
        up = outcome.up and engine.access.refused is None
        self._last_checks[engine.name] = (now, up)
        engine.update_status(up=up, cause=outcome.cause)
        engine.update_gauges(outcome.gauges)
        self._watch(engine, outcome)
        if up and was_down:
            self._on_up(engine)

    def _start_list_read(self, engine: Engine) -> None:
        task = self._list_reads.get(engine.name)
        is_due = engine.access.refused is not None or self._model_lists.is_due(engine)
        if is_due and (task is None or task.done()):
            self._list_reads[engine.name] = asyncio.get_running_loop().create_task(self._read_list(engine))

    def _cancel_list_read(self, engine: Engine) -> None:
        if (task := self._list_reads.get(engine.name)) is not None:
            task.cancel()

    async def _read_list(self, engine: Engine) -> None:
        """Reads the list of an engine whose health is good, in a task of its own: a slow one delays no checks."""
        was_refused = engine.access.refused is not None
        if was_refused:
            await self._model_lists.read_first(engine)  # it may have changed meanwhile
        else:
            await self._model_lists.refresh(engine)
        if engine.access.refused is not None:
            engine.update_status(up=False)
        elif was_refused:
            engine.update_status(up=True)
            self._on_up(engine)

    async def _ask(self, engine: Engine, deadline: float) -> _Outcome | None:
        """None if no request was sent, so that the engine's state is unchanged."""
        result = CheckResult.DOWN
        try:
            status = await self._health_status(engine, deadline)  # all requests share the deadline
            if status not in _UP:
                return _Outcome(result, f"status {status}")
            result = CheckResult.UP
            return _Outcome(result, gauges=await self._gauges(engine, deadline))
        except ValueError as error:
            log.debug("engine %s: %s", engine.name, error)
            return _Outcome(result, str(error))
        except EngineError as error:
            log.debug("engine %s: %s", engine.name, error)
            if error.reason == "local":
                return None
            engine.access.reset()
            if result is CheckResult.DOWN and is_refused(error):
                result = CheckResult.CLOSED
            return _Outcome(result, describe_cause(error))

    def _watch(self, engine: Engine, outcome: _Outcome) -> None:
        # One that refuses the router's key still generates what it has begun.
        answers = outcome.up or engine.access.refused is not None
        result = CheckResult.UP if answers else outcome.result
        # If it is up, the cause is of its metrics.
        counters = None if outcome.up and outcome.cause else outcome.gauges.progress
        was_unknown = engine.watch.signs.is_progress_unknown
        engine.watch.on_check(result, outcome.gauges.running, counters)
        if engine.watch.signs.is_progress_unknown is not was_unknown:
            _log_progress(engine, outcome.cause)
        self._abort_lost(engine)

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


def _was_found_down(engine: Engine, was_down: bool) -> bool:
    """Whether a request could not connect since the check began, whose answer may be older: the next one decides."""
    return not was_down and engine.up is False and engine.access.refused is None


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
