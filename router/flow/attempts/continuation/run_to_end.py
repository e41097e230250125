"""Runs a stream to its end: if its engine breaks it off, another one goes on.

Theory of operation. `EngineStream.run` raises the failure of an engine after its first token, when the client has part
of the response. The stream's recorder has all of that part; a Seam derives from it how another engine can go on. That
engine is found as the first one was: with a slot, within the retry budget, past open breakers. Its events go through
the recorder of the first one, so the client, the followers and the store get one stream. If nothing can go on, the
failure is raised, and the client gets an error event.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, NoReturn

from router.core.plural import pluralize
from router.errors import ApiError
from router.flow.attempts.attempt import Attempt
from router.flow.attempts.continuation.continuation_engines import ContinuationEngines
from router.flow.attempts.continuation.continuation_facts import Continuation
from router.flow.attempts.continuation.seam import ContinuationLimits, Seam
from router.flow.attempts.dispatch import Dispatcher
from router.flow.attempts.engine_attempts import EngineAttempts
from router.flow.attempts.engine_losses import EngineLosses
from router.flow.attempts.engine_stream import EngineStream
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError, engine_lost
from router.net.loop_turns import LoopTurns
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")


class StreamEnd(NamedTuple):
    """How a stream has come to its end.

    - `attempt`: the last one.
    - `survived`: its engine lived to the end. A response that lacks only its end needs no other engine.
    - `is_exact`: the response is what one engine would have generated; so it is if no other went on.
    """

    attempt: Attempt
    survived: bool
    is_exact: bool


class Continuations:
    """Runs streams to their end, within these limits."""

    def __init__(
        self, dispatcher: Dispatcher, attempts: EngineAttempts, losses: EngineLosses, engines: ContinuationEngines,
        limits: ContinuationLimits,
    ) -> None:  # fmt: skip
        self.dispatcher = dispatcher
        self.attempts = attempts
        self.losses = losses
        self.engines = engines
        self.limits = limits
        self.turns = LoopTurns()

    async def run_to_end(self, inflight: InFlightRequest, engines: Sequence[Engine], stream: EngineStream) -> StreamEnd:
        """Publishes everything after the first token, and closes the stream.

        Raises EngineError if the response is not complete: the failure after which nothing went on.
        """
        run = _Run(self, inflight, engines, stream)
        while True:
            try:
                await stream.run(run.is_bound)
                return StreamEnd(stream.attempt, survived=True, is_exact=run.is_exact)
            except EngineError as error:
                failure = error
            finally:
                stream.close()
            # Before any wait: the client may leave at any time, and its tenant pays for the seconds so far.
            stream.attempt.facts.failed_after_token(failure, time.perf_counter())
            inflight.trace.end_attempt(failure.reason)
            await self.losses.on_failed_attempt(inflight, stream.attempt, failure)
            next_stream = await run.go_on(failure)
            if next_stream is None:
                return StreamEnd(stream.attempt, survived=False, is_exact=False)
            stream = next_stream


class _Run:
    """One stream, and the engines that have worked on it. The last of these still does, or has just failed.

    It does not have the EngineStream: that refers to `is_bound`.
    """

    def __init__(
        self, shared: Continuations, inflight: InFlightRequest, selected: Sequence[Engine], stream: EngineStream
    ) -> None:
        self._shared = shared
        self._inflight = inflight
        self._selected = selected
        self._recorder = stream.recorder
        self._engines = [stream.engine]
        self.is_exact = True

    def is_bound(self) -> bool:
        """Whether the stream would end if it left its engine, as far as is known without reading it."""
        seam = self._seam(engine_lost())
        if seam is None or seam.obstacle is not None:
            return True
        if seam.may_be_complete:
            return False
        # The last takes longest, and is asked of all streams of an engine at once.
        return self._is_at_limit or not (able := self._able(seam)) or seam.has_obstacle_at(able)

    async def go_on(self, failure: EngineError) -> EngineStream | None:
        """The stream of the engine that goes on; None if the response needed no engine and is complete.

        Raises `failure`.
        """
        inflight, record, broken = self._inflight, self._inflight.record, self._engines[-1]
        seam = self._seam(failure)
        if seam is None:
            raise failure
        if seam.obstacle is not None:
            self._give_up(failure, seam.obstacle)
        await self._shared.turns.take()
        at_limit, able = self._is_at_limit, self._able(seam)
        if (at_limit or not able) and not seam.may_be_complete:  # then it need not be read, which takes time
            self._give_up(failure, "limit" if at_limit else "no-engine")
        seam.read()
        if seam.obstacle is not None:
            self._give_up(failure, seam.obstacle)
        if seam.is_complete:
            if data := seam.end():
                inflight.publish(data)
            record.continuations.append(Continuation(failure.reason, "complete"))
            return None
        candidates = seam.candidates(able) if not at_limit else []
        if not candidates:
            self._give_up(failure, "limit" if at_limit else seam.missing if able else "no-engine")
        stream = await self._ask(seam, candidates, failure)
        inflight.trace.on_continued(seam.tokens)
        record.continuations.append(
            Continuation(failure.reason, "continued", stream.engine.name, seam.tokens, seam.repeated_tokens)
        )
        log.warning(
            "request %s: engine %s: %s (%s) after %s; engine %s %s",
            inflight.origin.request_id, broken.name, failure.full_message, failure.reason,
            "reasoning" if seam.begins_anew else pluralize(seam.tokens, "token"), stream.engine.name,
            "begins anew" if seam.begins_anew else "goes on",
        )  # fmt: skip
        return stream

    async def _ask(self, seam: Seam, candidates: Sequence[Engine], failure: EngineError) -> EngineStream:
        """The first of the candidates that goes on. It need not be up: a wait for one would be one in mid-response."""
        make_attempt = partial(self._shared.attempts.rest, seam)
        try:
            stream, restart = await self._shared.dispatcher.dispatch(
                make_attempt, self._inflight, candidates, broken_off=failure
            )
        except asyncio.CancelledError:  # every client has left, or the router stops
            self._inflight.record.continuations.append(Continuation(failure.reason, "cancelled"))
            raise
        except ApiError as refusal:
            self._give_up(failure, refusal.reason if seam.candidates(candidates) else seam.missing)
        # Without randomness, an engine that begins in the state of the failed one generates what that would have.
        self._engines.append(stream.engine)
        if not restart.derenders:  # else it was before the rest; the in-flight request has published its own before
            self._inflight.prompt.on_first_token(time.perf_counter())
        self.is_exact = self.is_exact and restart.exact and self._inflight.request.temperature == 0
        return stream

    def _seam(self, failure: EngineError) -> Seam | None:
        """None if streams of this model are not continued."""
        inflight, limits, first, broken = self._inflight, self._shared.limits, self._engines[0], self._engines[-1]
        if not limits.allows(broken.model):
            return None
        return Seam(
            inflight.request, self._recorder, broken, failure, dispatched_at=inflight.dispatched_at or 0.0,
            adapter=inflight.origin.adapter, default_tokens=limits.default_tokens(inflight.request, first),
        )  # fmt: skip

    @property
    def _is_at_limit(self) -> bool:
        return len(self._engines) > self._shared.limits.per_stream

    def _able(self, seam: Seam) -> Sequence[Engine]:
        found = self._shared.engines.find(seam.request, self._engines[-1].model, self._selected)
        return seam.able(found, self._engines)

    def _give_up(self, failure: EngineError, result: str) -> NoReturn:
        self._inflight.record.continuations.append(Continuation(failure.reason, result))
        log.warning(
            "request %s: engine %s: %s (%s); no engine goes on (%s)",
            self._inflight.origin.request_id, self._engines[-1].name, failure.full_message, failure.reason, result,
        )  # fmt: skip
        raise failure
