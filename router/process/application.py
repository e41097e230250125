"""The ASGI application: it passes requests to the current runtime, and replaces that on a reload.

Theory of operation. Everything that depends on the configuration belongs to one Runtime. A reload creates and starts a
second Runtime beside the first, then replaces it with one assignment; so a request sees either the old or the new one,
and ends with the one it began with. The old Runtime is closed after its last request and generation. What outlives it
belongs to ProcessState or, as long as the address of Redis stays the same, to RedisServices, and changes only when a
Runtime takes effect.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from router.api.inference.endpoint import AsgiScope, AsgiSend
from router.api.method_answers import (
    ALLOW_POST,
    answer_other_method,
    answers_preflight,
    send_no_content,
    with_request_id,
)
from router.net.server.client_connection import AsgiReceive
from router.net.tasks import cancel_and_wait
from router.process.process_state import ProcessState
from router.process.runtime import Runtime
from router.process.start_report import EngineCount
from router.settings import Settings
from router.shared.engines.announcements import Fleet
from router.upstream.announced_engines import with_fleet

log = logging.getLogger("roundhouse.engines")

_POLL_INTERVAL: Final = 0.1  # seconds between two checks whether an old runtime is idle
_FLEET_RETRY: Final = 5.0  # seconds until announced engines that could not be applied are tried again


RuntimeFactory = Callable[[Settings, ProcessState, Runtime | None], Runtime]
"""Creates a runtime; its third argument is the one that it replaces."""


class Application:
    """Finds the endpoints that generate in a dict, which costs least; Starlette routes everything else."""

    def __init__(self, create_runtime: RuntimeFactory, process_state: ProcessState, settings: Settings) -> None:
        self._create_runtime = create_runtime
        self._process_state = process_state
        self._configured = settings  # the settings of the file; those of the runtime have the announced engines
        self._runtime = create_runtime(settings, process_state, None)
        self._warnings: frozenset[str] = frozenset()  # about the announced engines, those that are logged
        self._fleet_task: asyncio.Task[None] | None = None
        self._fleet_timer: asyncio.TimerHandle | None = None
        self._fleet_problem: str | None = None  # why the announced engines are not in effect
        process_state.on_fleet_change = self._on_fleet_change
        process_state.in_flight = self._count_in_flight
        self._retiring: dict[asyncio.Task[None], Runtime] = {}
        self._reload_lock = asyncio.Lock()
        self._drain_started_at: float | None = None

    @property
    def settings(self) -> Settings:
        return self._configured

    def engine_count(self) -> EngineCount:
        engines = self._runtime.catalog.engines.values()
        return EngineCount(
            up=sum(engine.up is True for engine in engines), total=len(engines),
            refused=tuple(engine.name for engine in engines if engine.access.refused is not None),
            closed=self._runtime.auth.refuses_all or "",
        )  # fmt: skip

    def drain(self) -> None:
        """From now on, /readyz reports 503. Requests are still answered."""
        self._process_state.draining = True
        self._drain_started_at = self._drain_started_at or time.monotonic()

    def end_events(self) -> None:
        """To be called when the server stops listening.

        Neither the viewers of the dashboard nor requests that wait for an engine to start may delay its end.
        """
        for runtime in self._runtimes:
            runtime.end_waits()

    def record_rejection(self, reason: str) -> None:
        self._process_state.telemetry.record_rejection(reason)

    def error_headers(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Header lines of an error that the server reports by itself; see router.net.server.errors.ErrorHeaders."""
        cors = self._runtime.cors
        return cors.response_lines(headers) if cors is not None else b""

    async def reload(self, settings: Settings) -> None:
        """Puts settings into effect, except those of the server; see router.process.server.reload_settings.

        Running requests end with the runtime they began with. If this raises, nothing has changed.
        """
        async with self._reload_lock:
            # The lock: two reloads at once would both replace the same runtime.
            await self._replace_runtime(self._with_fleet(settings))
            self._configured = settings

    @property
    def _runtimes(self) -> tuple[Runtime, ...]:
        return (*self._retiring.values(), self._runtime)

    def _count_in_flight(self) -> int:
        return sum(runtime.active_requests - runtime.other_requests for runtime in self._runtimes)

    def _on_fleet_change(self) -> None:
        if self._fleet_task is None or self._fleet_task.done():
            self._fleet_task = asyncio.get_running_loop().create_task(self._apply_fleet())

    async def _apply_fleet(self) -> None:
        """Replaces the runtime until it has the engines that are announced now; often it has them already.

        What cannot be applied now, as the disk is full for example, is tried again later: an announcement that stays as
        it is changes nothing that would cause another try.
        """
        try:
            async with self._reload_lock:
                while (settings := self._with_fleet(self._configured)) != self._runtime.settings:
                    await self._replace_runtime(settings)
                    log.info("the announced engines are in effect: %s", ", ".join(self._runtime.catalog.engines))
                is_applied = self._runtime.catalog.set_announced(self._fleet.engines)
                self._fleet_problem = None
        except Exception as error:
            # The last line of defence: the present engines go on serving.
            is_applied = False
            if self._fleet_problem != repr(error):  # else it is logged already
                self._fleet_problem = repr(error)
                log.exception("the announced engines cannot be applied; trying again every %g s", _FLEET_RETRY)
        if not is_applied:
            self._try_fleet_later()

    def _try_fleet_later(self) -> None:
        if self._fleet_timer is not None:
            self._fleet_timer.cancel()
        self._fleet_timer = asyncio.get_running_loop().call_later(_FLEET_RETRY, self._on_fleet_change)

    @property
    def _fleet(self) -> Fleet:
        return self._runtime.announcements.fleet

    def _with_fleet(self, settings: Settings) -> Settings:
        warnings: set[str] = set()
        merged = with_fleet(settings, self._fleet, warnings.add)
        for line in sorted(warnings - self._warnings):  # others are logged already: the fleet changes every few seconds
            log.warning("%s", line)
        self._warnings = frozenset(warnings)
        return merged

    async def _replace_runtime(self, settings: Settings) -> None:
        old = self._runtime
        new = self._create_runtime(settings, self._process_state, old)
        try:
            await new.start()
        except BaseException:
            await new.aclose()
            raise
        self._runtime = new
        # Without a wait in between, so that no request meets a half of each.
        new.take_effect(old)
        # Before the next wait, which may be cancelled: the old one must be closed in any case.
        task = asyncio.get_running_loop().create_task(self._retire(old))
        self._retiring[task] = old
        task.add_done_callback(self._retiring.pop)
        # The oldest comes last: each puts its requests before those of the others.
        for runtime in reversed(self._retiring.values()):
            runtime.adopt_engines(new.catalog, new.engines.breakers.state)
        # Only after the new one has started; if that fails, the old one goes on probing.
        await old.on_replaced()

    async def _retire(self, runtime: Runtime) -> None:
        while not runtime.is_idle:  # noqa: ASYNC110 - polling costs less than a notification from every request
            await asyncio.sleep(_POLL_INTERVAL)
        await runtime.aclose()

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        runtime = self._runtime
        runtime.active_requests += 1
        try:
            if runtime.cors is not None and answers_preflight(runtime.cors, scope):
                await send_no_content(scope, send, [])
                return
            endpoint = runtime.inference_endpoints.get(scope["path"])
            if endpoint is None:
                await self._call_starlette(runtime, scope, receive, send)
            elif scope["method"] == "POST":
                await endpoint(scope, receive, send)
            elif scope["method"] == "OPTIONS":
                await send_no_content(scope, send, ALLOW_POST)
            else:
                await answer_other_method(scope, send, runtime.open_websocket, self)
        finally:
            runtime.active_requests -= 1

    async def _call_starlette(self, runtime: Runtime, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        # Starlette may need a current task, and there is one only after a first wait (router.net.server.eager).
        await asyncio.sleep(0)
        runtime.other_requests += 1
        try:
            await runtime.starlette_app(scope, receive, with_request_id(scope, send))
        finally:
            runtime.other_requests -= 1

    async def _lifespan(self, receive: AsgiReceive, send: AsgiSend) -> None:
        """ASGI's lifespan protocol: one message to start, one to stop."""
        await receive()
        self._process_state.start()
        async with self._reload_lock:
            # The lock: the fleet may change during the start, and a runtime that is not started cannot be closed.
            self._runtime.take_effect(None)
            await self._runtime.start()
        await self._apply_fleet()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._process_state.on_fleet_change = lambda: None  # from now on, no runtime is replaced
        await cancel_and_wait(self._fleet_task)
        if self._fleet_timer is not None:
            self._fleet_timer.cancel()
        self.end_events()
        await self._wait_for_followers()
        self._runtime.withdraw_status()
        retiring = dict(self._retiring)  # a copy, since a task that ends removes itself
        await cancel_and_wait(*retiring)
        for runtime in (*retiring.values(), self._runtime):
            await runtime.end_generations()
        for runtime in (*retiring.values(), self._runtime):
            await runtime.aclose()
        await self._process_state.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _wait_for_followers(self) -> None:
        """Waits for generations that only other processes' clients read, as long as the server waits for its own."""
        if self._drain_started_at is None:
            return
        router = self.settings.router
        deadline = self._drain_started_at + router.drain + router.grace
        runtimes = self._runtimes
        while any(runtime.has_followers for runtime in runtimes) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)
