"""The story of one request: key, look-up, and on a miss the way to an engine and back."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from router.core.control import Control
from router.core.key import Key, Markers, derive, take_apart
from router.core.policy import Store as StorePolicy
from router.core.policy import decide
from router.core.recording import NotKept, Recording
from router.core.replay import replay
from router.core.request import Request, parse
from router.core.routing import plan
from router.core.types import Bypass, CacheStatus, Entry, Task
from router.errors import not_cached
from router.flow.dispatch import Dispatcher
from router.flow.exchange import Exchange
from router.flow.flight import Flight, Keep
from router.store.redis import RedisStore, StoreDownError, WriteResult
from router.upstream.catalog import Catalog, Engine


class Whole(msgspec.Struct, frozen=True):
    """An answer that is there: JSON, or a stream that was kept."""

    body: bytes
    stream: bool


Answer = Whole | Flight


class Leaving(Protocol):
    """Watches for the client to leave, from the moment on at which somebody works for it."""

    def watch(self) -> None:
        """From now on, the request's task is cancelled when the client leaves."""


class CacheSettings(msgspec.Struct, frozen=True):
    """`ttl` in seconds; see settings.Cache."""

    ttl: float
    store: StorePolicy
    markers: Markers


class Gateway:
    """Answers requests: from the store where it has the answer, else from an engine."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        store: RedisStore,
        dispatcher: Dispatcher,
        classify: Callable[[str], Task],
        cache: CacheSettings,
        written: Callable[[str], None],
    ) -> None:
        """`written` is told what became of every answer that was to be stored: a word for metrics."""
        self._catalog = catalog
        self._store = store
        self._dispatcher = dispatcher
        self._classify = classify
        self._cache = cache
        self._written = written

    async def answer(self, exchange: Exchange, control: Control, body: bytes, client: Leaving) -> Answer:
        """What the client gets. Raises ApiError."""
        request = parse(exchange.endpoint, body)
        parts = take_apart(request, self._cache.markers)
        task = self._classify(parts.question)
        model = self._catalog.resolve(request.model, task)
        exchange.stream, exchange.task, exchange.model = request.stream, task, model.name

        key = derive(parts, tenant=exchange.tenant, model=model.name, revision=model.revision)
        exchange.bypass, may_keep = decide(request, control, self._cache.store)
        if exchange.bypass is None:
            found = await self._look_up(exchange, request, key, control.max_age)
            if found is not None:
                return found
        exchange.cache = CacheStatus.BYPASS if exchange.bypass is not None else CacheStatus.MISS
        if control.only_if_cached:
            raise not_cached()
        keep = self._keeper(exchange, key, control.ttl) if may_keep and self._store.up else None

        client.watch()
        engines = self._plan(model.name, task)
        if request.stream:
            generation = await self._dispatcher.stream(exchange, request, engines)
            return Flight(generation, request, exchange, keep)
        answer, recording = await self._dispatcher.whole(exchange, request, engines)
        self._note_whole(exchange, recording, keep)
        return Whole(answer, stream=False)

    async def _look_up(self, exchange: Exchange, request: Request, key: Key, max_age: int | None) -> Whole | None:
        try:
            entry = await self._store.get(key.text)
        except StoreDownError:
            exchange.bypass = Bypass.REDIS_DOWN
            return None
        exchange.key = key.text
        # The hash in the key only finds an entry; the digest proves that it answers this very request.
        if entry is None or entry.digest != key.digest:
            return None
        age = max(0.0, time.time() - entry.created)
        if max_age is not None and age > max_age:
            return None
        body = replay(entry, request)
        if body is None:
            return None
        exchange.cache = CacheStatus.HIT
        exchange.age, exchange.ttl = int(age), max(0, int(entry.ttl - age))
        exchange.task, exchange.engine = entry.task, entry.engine
        exchange.prompt_tokens, exchange.completion_tokens = entry.prompt_tokens, entry.completion_tokens
        return Whole(body, request.stream)

    def _plan(self, model: str, task: Task) -> Sequence[Engine]:
        order = plan(task, [engine.view() for engine in self._catalog.serving(model)])
        return [self._catalog.engines[view.name] for view in order]

    def _note_whole(self, exchange: Exchange, recording: Recording | NotKept, keep: Keep | None) -> None:
        exchange.first_token = time.perf_counter()
        if isinstance(recording, NotKept):
            exchange.not_kept = recording
            return
        exchange.prompt_tokens, exchange.completion_tokens = recording.prompt_tokens, recording.completion_tokens
        if keep is not None:
            keep(recording)

    def _keeper(self, exchange: Exchange, key: Key, ttl: int | None) -> Keep:
        """Stores the answer to this exchange under its key, for no longer than `ttl` seconds."""
        lifetime = self._cache.ttl if ttl is None else min(self._cache.ttl, ttl)

        def keep(recording: Recording) -> None:
            assert exchange.model is not None
            assert exchange.engine is not None
            assert exchange.task is not None
            began = exchange.dispatched or exchange.begun
            entry = Entry(
                digest=key.digest,
                body=recording.body,
                frames=recording.frames,
                usage_frame=recording.usage_frame,
                model=exchange.model,
                engine=exchange.engine,
                task=exchange.task,
                created=round(time.time(), 3),
                ttl=lifetime,
                prompt_tokens=recording.prompt_tokens,
                completion_tokens=recording.completion_tokens,
                generation_ms=int((time.perf_counter() - began) * 1000),
            )
            self._store.put(key.text, entry).add_done_callback(self._note_written)

        return keep

    def _note_written(self, done: "asyncio.Future[WriteResult]") -> None:
        self._written(done.result())
