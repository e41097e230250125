"""The story of one request: key, look-up, and on a miss the way to an engine and back."""

import time
from collections.abc import Callable
from functools import partial
from math import floor
from typing import Final, Protocol

from router.core.cache.cache_control import Control
from router.core.cache.fingerprint import Fingerprint
from router.core.cache.miss_reason import Hints, Marks, fingerprint, marks_of
from router.core.cache.policy import Use, decide, usable
from router.core.endpoints.recorded_response import Recording
from router.core.types import Bypass, CacheStatus, Entry
from router.errors import ApiError, not_cached
from router.flow.brownout import Brownout
from router.flow.coalescer import Flights
from router.flow.engine_selection import Chooser
from router.flow.exchange import Exchange, Work, new_request_id
from router.flow.generation import Keep
from router.flow.inflight import Again, Reader
from router.flow.lookup import CacheSettings, Found, Whole
from router.flow.parsed_request import Reading
from router.flow.request_resolver import RequestReader
from router.net.redis.pipeline import RedisDownError
from router.shared.purges import Purges
from router.store.cached_entry import Stored
from router.store.entry_store import EntryStore, WriteResult
from router.store.local_cache import LocalCopy

_ATTEMPTS: Final = 3  # how often a request may begin anew because a flight came to nothing; the last time on its own
_ENGINES_FAULT: Final = (502, 503, 504)


Answer = Whole | Reader


class Leaving(Protocol):
    """Watches for the client to leave, from the moment on at which somebody works for it."""

    def watch(self) -> None:
        """From now on, the request's task is cancelled when the client leaves."""


class Gateway:
    """Answers requests: from the store where it has the answer, else from an engine, for all who ask the same."""

    def __init__(
        self,
        *,
        reader: RequestReader,
        chooser: Chooser,
        store: EntryStore,
        local: LocalCopy,
        flights: Flights,
        purges: Purges,
        hints: Hints,
        cache: CacheSettings,
        brownout: Brownout,
        written: Callable[[str], None],
        hit: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        """`written` is told what became of every answer that was to be stored, `hit` the key of each that was given.

        `clock` gives seconds since the epoch, the same in every process.
        """
        self._reader = reader
        self._chooser = chooser
        self._store = store
        self._local = local
        self._flights = flights
        self._purges = purges
        self._hints = hints
        self._cache = cache
        self._brownout = brownout
        self._written = written
        self._hit = hit
        self._clock = clock

    async def answer(self, exchange: Exchange, control: Control, body: bytes, client: Leaving) -> Answer:
        """What the client gets. Raises ApiError."""
        asked = self._reader.read(exchange.endpoint, exchange.tenant, body, control)
        exchange.stream, exchange.model = asked.request.stream, asked.model.name
        tenant = self._cache.tenants[exchange.tenant]
        exchange.bypass, may_keep = decide(
            asked.request, control, tenant.store, self._cache.remote, texts_only=asked.parts.texts_only
        )
        found = None
        if exchange.bypass is None:
            found = self._find_here(exchange, asked) or await self._look_up(exchange, asked)
        if found is not None and self._is_good_enough(found, asked):
            return self._give(exchange, found, asked)
        exchange.task = asked.task
        exchange.cache = CacheStatus.BYPASS if exchange.bypass is not None else CacheStatus.MISS
        print_ = fingerprint(asked.key.text, asked.parts)
        marks = marks_of(print_)
        if exchange.cache is CacheStatus.MISS:
            exchange.reason = "expired" if found is not None else self._hints.reason(marks)
        if control.only_if_cached:
            raise not_cached()
        client.watch()
        try:
            keep = self._keeper(exchange, asked, print_, marks) if may_keep else None
            return await self._generated(exchange, asked, keep, found)
        except ApiError as error:
            if error.status not in _ENGINES_FAULT or exchange.bypass is not None:
                raise
            found = await self._found_after_all(asked, found)
            if found is None:
                raise
            return self._give(exchange, found, asked)

    # -- what is stored ---------------------------------------------------------------------------------------------

    def _find_here(self, exchange: Exchange, asked: Reading) -> Found | None:
        stored = self._local.get(asked.key.text)
        if stored is None:
            return None
        exchange.key = asked.key.text
        return self._judge(asked, stored, local=True)

    async def _look_up(self, exchange: Exchange, asked: Reading) -> Found | None:
        key = asked.key.text
        flight = self._flights.find(asked.key)
        if flight is not None and flight.led_here:
            # It is being generated here, so nobody has stored it. What another process generates may be stored already.
            exchange.key = key
            return None
        try:
            entry = await self._store.get(key)
        except RedisDownError:
            exchange.bypass, exchange.cache, exchange.reason = Bypass.REDIS_DOWN, CacheStatus.BYPASS, None
            return None
        exchange.key = key
        return self._judge(asked, Stored(entry), local=False) if entry is not None else None

    def _is_good_enough(self, found: Found, asked: Reading) -> bool:
        if found.use is Use.IF_ERROR:
            return self._brownout.prefers_stale(asked.model.name)
        return found.use is not Use.NONE

    def _judge(self, asked: Reading, stored: Stored, *, local: bool) -> Found:
        entry = stored.entry
        age = self._clock() - entry.created
        if age < 0:  # Redis' clock was set back, or a server took over whose clock is behind
            age = 0.0
        use, body = Use.NONE, None
        if stored.answers(asked.key):
            use = usable(age, entry.ttl, asked.control, min(entry.stale, self._cache.stale_if_error))
            body = stored.replay(asked.request) if use is not Use.NONE else None
        return Found(entry, body or b"", age, local, use if body is not None else Use.NONE)

    async def _found_after_all(self, asked: Reading, found: Found | None) -> Found | None:
        """What is stored and can be given although no engine had an answer."""
        if found is None:  # it may have been there all the time: who joins a flight has not looked
            try:
                entry = await self._store.get(asked.key.text)
            except RedisDownError:
                return None
            found = self._judge(asked, Stored(entry), local=False) if entry is not None else None
        return found if found is not None and found.use is not Use.NONE else None

    def _give(self, exchange: Exchange, found: Found, asked: Reading) -> Whole:
        entry = found.entry
        exchange.cache = CacheStatus.HIT if found.use is Use.FRESH else CacheStatus.STALE
        exchange.reason, exchange.adjusted, exchange.fallback = None, (), None
        exchange.age, exchange.ttl, exchange.local = int(found.age), floor(entry.ttl - found.age), found.local
        exchange.task, exchange.engine = entry.task, entry.engine
        exchange.prompt_tokens, exchange.completion_tokens = entry.prompt_tokens, entry.completion_tokens
        self._hit(asked.key.text)
        return Whole(found.body, asked.request.stream)

    # -- what is generated ------------------------------------------------------------------------------------------

    async def _generated(self, exchange: Exchange, asked: Reading, keep: Keep | None, found: Found | None) -> Answer:
        """`found`: what was stored when it was looked for, and could not be given."""
        may_share = exchange.bypass is None or exchange.bypass is Bypass.REDIS_DOWN
        for attempt in range(_ATTEMPTS):
            share = may_share and attempt < _ATTEMPTS - 1
            flight = self._flights.find(asked.key) if share else None
            leads = flight is None
            if flight is None:
                models = self._brownout.models(asked.model.name, asked.request.endpoint)
                choice = self._chooser.choose(asked, exchange.tenant, exchange.session, models)
                exchange.adjusted = choice.adjusted
                exact = not choice.adjusted  # else it is the answer to another request, and nobody else's
                flight = self._flights.launch(
                    choice.request, asked.key if share and exact else None, self._work(exchange, asked),
                    choice.engines,
                    keep=keep if exact else None, documents=asked.parts.documents(), since=self._purges.last,
                    seen=found.entry.created if found is not None else None,
                )  # fmt: skip
            reader = flight.attach(asked.request, exchange, leads=leads)
            exchange.dispatched = time.perf_counter()
            try:
                whole = await reader.begin()
            except Again:
                reader.close()
            except BaseException:
                reader.close()
                raise
            else:
                if not (leads and flight.led_here):
                    exchange.cache, exchange.reason = CacheStatus.COALESCED, None
                if whole is None:
                    return reader
                reader.close()
                return Whole(whole, asked.request.stream)
            if share and exchange.bypass is None:
                found = self._find_here(exchange, asked) or await self._look_up(exchange, asked)
                if found is not None and found.use is Use.FRESH:
                    return self._give(exchange, found, asked)
        raise AssertionError("a flight of one's own never asks to begin anew")

    def _work(self, exchange: Exchange, asked: Reading) -> Work:
        is_ours = exchange.engine_request_id is None and not exchange.named_by_client
        exchange.engine_request_id = exchange.request_id if is_ours else new_request_id()
        if exchange.body is not None:
            exchange.body.share()
        return Work(
            body=exchange.body, request_id=exchange.request_id, engine_request_id=exchange.engine_request_id,
            traceparent=exchange.traceparent, tenant=exchange.tenant, model=asked.model.name, task=asked.task,
            stream=asked.request.stream, begun=exchange.begun,
        )  # fmt: skip

    def _keeper(self, exchange: Exchange, asked: Reading, print_: Fingerprint, marks: Marks) -> Keep:
        """Stores the answer to this request under its key, for no longer than the client allows."""
        ttl = self._cache.tenants[exchange.tenant].ttl
        lifetime = ttl if asked.control.ttl is None else min(ttl, asked.control.ttl)
        # Who shortens the life of his answer wants it gone by then.
        stale = self._cache.stale_if_error if lifetime == ttl else 0.0
        documents, since = asked.parts.documents(), self._purges.last

        def keep(recording: Recording, work: Work) -> None:
            assert work.engine is not None
            entry = Entry(
                digest=asked.key.digest,
                body=recording.body,
                stream=recording.stream,
                model=work.model,
                engine=work.engine,
                task=work.task,
                created=int(1000 * self._clock()) / 1000,
                ttl=lifetime,
                stale=stale,
                prompt_tokens=recording.prompt_tokens,
                completion_tokens=recording.completion_tokens,
                generation_ms=int((time.perf_counter() - (work.dispatched or work.begun)) * 1000),
                documents=documents,
                question=print_.question,
                params=print_.params,
            )
            self._store.put(asked.key.text, entry, since, partial(self._on_written, marks))

        return keep

    def _on_written(self, marks: Marks, result: WriteResult) -> None:
        """A write is over. What was not stored is no reason for a later miss."""
        if result == "stored":
            self._hints.note(marks)
        self._written(result)
