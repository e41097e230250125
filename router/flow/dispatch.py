"""From a plan to an engine at work: the first engine that gives a token has the request.

Nothing has been sent to the client before that, so until then another engine can take over, and nobody notices.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from math import ceil
from operator import attrgetter
from types import MappingProxyType
from typing import Final, TypeVar

from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.engine_errors import (
    MAX_ERROR,
    answer_too_large,
    is_lacking,
    is_refusal,
    read_refusal,
    read_refusal_in_stream,
)
from router.core.endpoints.recorded_response import NotKept, Recording
from router.core.endpoints.recorders import record_body, recorder_for
from router.core.endpoints.recording import MAX_FRAME, TOO_LONG, Recorder
from router.core.endpoints.request import Request, for_engine
from router.core.resilience.retry import read_retry_after
from router.core.resilience.timeouts import Patience
from router.errors import UPSTREAM, ApiError, unavailable
from router.flow.admission import Admission, NoRoomError, Place
from router.flow.engine_health import Standing
from router.flow.exchange import Work
from router.net.client.errors import EngineError, broken_off
from router.net.client.response import EngineResponse
from router.upstream.catalog import Engine
from router.upstream.client import EngineClient

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

Say = Callable[[bytes], None]
"""Takes whole events for whoever asked."""

MAX_ANSWER: Final = 256 << 20
"""Bytes of a JSON answer that are read."""


class Generation:
    """An engine at work on a request: what it says is said on, from the first token on, as soon as it is there.

    - `begin` waits until there is a first token; before that, nothing has been said, and another engine can take over.
    - `run` goes on until the engine has said all; `recorder` then says what it was.
    - Once `close` has been called, the engine is free and no longer counted as busy with this.
    """

    __slots__ = ("_between", "_first", "_place", "_response", "_say", "_standing", "recorder")

    def __init__(
        self, place: Place, response: EngineResponse, recorder: Recorder, standing: Standing, say: Say, *,
        between: float,
    ) -> None:  # fmt: skip
        """`say` takes whole events; `between`: seconds from one chunk to the next."""
        self.recorder = recorder
        self._place = place
        self._response = response
        self._standing = standing
        self._between = between
        self._first: list[bytes] = []
        self._say = say

    @property
    def engine(self) -> Engine:
        return self._place.engine

    async def begin(self) -> None:
        """Waits for the first token, and says it. Raises EngineError, or ApiError for the client's fault."""
        try:
            poured = await self._response.pour(self._begins)
        except EngineError as error:
            if error.refusal is not None:
                raise error.refusal from None
            raise
        if not poured:
            raise broken_off()

    async def run(self) -> None:
        """Says what comes after that. Raises EngineError when the engine fails or stalls."""
        try:
            if not self._is_over() and not await self._response.pour(self._hears, self._between):
                raise broken_off()
        except EngineError as error:
            self._standing.failed(self.engine, error)
            raise
        self._standing.succeeded(self.engine)

    def close(self) -> None:
        self._place.close()
        self.release()

    def release(self) -> None:
        self._response.close(spent=self.recorder.ended)

    def _begins(self, chunk: bytes) -> bool:
        if data := self.recorder.feed(chunk):
            self._first.append(data)
        if not (self.recorder.started or self._is_over()):  # an answer of no tokens is an answer
            return False
        if self._first:
            self._say(b"".join(self._first))
        return True

    def _hears(self, chunk: bytes) -> bool:
        recorder = self.recorder
        if data := recorder.feed(chunk):
            self._say(data)
        return (recorder.ended or recorder.failure is not None) and self._is_over()

    def _is_over(self) -> bool:
        if self.recorder.ended:
            return True
        failure = self.recorder.failure
        if failure is not None:
            raise _failed(failure, self.engine)
        return False


class Dispatcher:
    """Sends requests to engines.

    - The engines of a plan are tried in turn until one answers: those of one model, some of them a second time, then
      those of the next; each failure is noted in the work. Whose breaker is open is left out.
    - What an engine says of the request itself (4xx) goes to the client, and nobody else is asked. What it lacks (404,
      405, 501) another engine may have; the client gets it where no engine has failed otherwise. See engine_errors.
    - An engine is asked once there is a place for that; the place is given back whatever happens.
    """

    def __init__(
        self, client: EngineClient, admission: Admission, patience: Patience, standing: Standing, *, max_entry: int,
        salts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`salts`: by tenant, the salt of its prompts in the engines' prefix caches; see core.endpoints.cache_salt."""
        self._client = client
        self._admission = admission
        self._patience = patience
        self._standing = standing
        self._max_entry = max_entry
        self._shapes = AnswerShapes()
        self._salts = salts

    def stream(self, work: Work, request: Request, engines: Sequence[Engine], say: Say) -> Awaitable[Generation]:
        """A generation whose first token has been said. Raises ApiError, before anything has been said."""
        return self._first_that(partial(self._begun, say), work, request, engines)

    def whole(
        self, work: Work, request: Request, engines: Sequence[Engine]
    ) -> Awaitable[tuple[bytes, Recording | NotKept]]:
        """A JSON answer, and what is to be kept of it. Raises ApiError."""
        return self._first_that(self._answered, work, request, engines)

    # -- whose turn it is -------------------------------------------------------------------------------------------

    async def _first_that(
        self, attempt: Callable[[Place, Work, Request], Awaitable[T]], work: Work, request: Request,
        engines: Sequence[Engine],
    ) -> T:  # fmt: skip
        """What the first attempt gives that does not fail; the place is its own then."""
        last: EngineError | None = None
        lacking: Exception | None = None
        no_room: NoRoomError | None = None
        self._standing.asked()
        for _, group in groupby(engines, key=attrgetter("model")):
            turns = self._standing.turns(list(group))
            while (turn := turns.next()) is not None:
                if turn.wait > 0:
                    await asyncio.sleep(turn.wait)
                open_ = turn.engines
                try:
                    place = self._admission.enter(work.tenant, open_) or await self._admission.wait(work.tenant, open_)
                except NoRoomError as full:
                    no_room = full
                    break  # the engines of the next model may have room
                engine = place.engine
                turns.took(engine)
                try:
                    pass_ = self._standing.admit(engine, after=last)
                    if pass_ is not None and (not pass_.probe or await pass_.claim()):
                        work.engine = engine.name
                        work.fallback = engine.model if engine.model != work.model else None
                        work.dispatched = work.dispatched or time.perf_counter()
                        with pass_:
                            return await attempt(place, work, request)
                except EngineError as error:
                    if error.refusal is not None:
                        lacking = lacking or error.refusal
                    else:
                        last = error
                    turns.failed(engine, error)
                    if error.reason == "local":  # the engine was not reached, so it gets no blame
                        work.engine = work.fallback = None
                    else:
                        work.attempts.append((engine.name, error.reason))
                    log.warning("request %s: engine %s: %s (%s)", work.request_id, engine.name, error, error.reason)
                except BaseException:
                    place.close()
                    raise
                place.close()
        if last is None and lacking is not None and not any(map(self._standing.is_shut, engines)):
            raise no_room or lacking
        raise no_room or _told(last, engines, self._standing)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _begun(self, say: Say, place: Place, work: Work, request: Request) -> Generation:
        patience = self._patience
        response = await self._ask(place.engine, work, request, patience.first_token)
        recorder = recorder_for(request.endpoint, self._max_entry, self._shapes)
        generation = Generation(place, response, recorder, self._standing, say, between=patience.between_tokens)
        try:
            await generation.begin()
        except BaseException:
            generation.release()
            raise
        return generation

    async def _answered(self, place: Place, work: Work, request: Request) -> tuple[bytes, Recording | NotKept]:
        with await self._ask(place.engine, work, request, None) as response:
            body, complete = await response.read_up_to(MAX_ANSWER)
        if not complete:
            raise answer_too_large("The answer", MAX_ANSWER)
        recording = record_body(request, body, self._max_entry)
        if recording is NotKept.ERROR:
            if (refusal := read_refusal_in_stream(body[:MAX_ERROR], _address(place.engine))) is not None:
                raise refusal
            raise EngineError("malformed", "the engine's answer is not one")
        self._standing.succeeded(place.engine)
        place.close()
        return body, recording

    async def _ask(self, engine: Engine, work: Work, request: Request, patience: float | None) -> EngineResponse:
        """Sends the request; returns an answer with status 200. Raises EngineError, or ApiError for the client's.

        `patience`: seconds for the head; None where the total is the only limit, as it is for a JSON answer, which has
        a head only when it is whole.
        """
        total = self._patience.total(request.max_tokens, engine.max_model_len)
        # An engine may still hold the attempt before under its id.
        number = len(work.attempts) + 1
        id_ = work.engine_request_id if number == 1 else f"{work.engine_request_id}-{number}"
        body = for_engine(request, engine.served_model, self._salts.get(work.tenant))
        response = await self._client.post(
            engine, request.endpoint, body, request_id=id_,
            traceparent=work.traceparent, patience=total if patience is None else patience, total=total,
        )  # fmt: skip
        if response.status == 200:
            return response
        status = response.status
        with response:
            wait = read_retry_after(response.retry_after, time.time())
            try:
                said, complete = await response.read_up_to(MAX_ERROR, self._patience.between_tokens)
            except EngineError:  # it has said what counts, which is the status
                said, complete = b"", False
        refusal = None
        if is_refusal(status):
            refusal = read_refusal(status, said, complete=complete, address=_address(engine))
            if not is_lacking(status):
                raise refusal
        raise EngineError(f"status-{status}", f"the engine answered with status {status}", wait, refusal)


def _address(engine: Engine) -> str:
    """Host and port of an engine, which are not for clients."""
    return engine.url.partition("://")[2].partition("/")[0]


def _failed(failure: bytes, engine: Engine) -> EngineError:
    """What a recorder's `failure` means."""
    if failure == TOO_LONG:
        refusal = answer_too_large("An event of the answer", MAX_FRAME)
        return EngineError("too-large", f"an event has more than {MAX_FRAME >> 20} MiB", refusal=refusal)
    said = read_refusal_in_stream(failure, _address(engine))
    if said is not None:
        return EngineError("refused", f"the engine refused the request: {said.message}", refusal=said)
    return EngineError("error-frame", "the engine reported an error")


def _told(error: EngineError | None, engines: Sequence[Engine], standing: Standing) -> ApiError:
    """What the client is told when no engine could do it. `error`: that of the last attempt, if there was one."""
    if error is None:
        return _nobody_asked(engines, standing)
    match error.reason:
        case "connect":
            return unavailable("No engine for this model can be reached at present.", code="no_engine")
        case "local":
            message = "The router has no file descriptor, port or memory left to reach an engine with."
            return unavailable(message, code="out_of_resources")
        case "status-429" | "status-503":
            wait = max(1, ceil(error.retry_after or 0.0))
            return unavailable(
                "The engines of this model take no more work at present.", code="engines_busy", retry_after=wait
            )
        case "timeout":
            return ApiError(504, "The engine did not answer in time.", kind=UPSTREAM, code="engine_timeout")
        case _:
            return ApiError(502, f"The request failed at the engine: {error}.", kind=UPSTREAM, code="engine_failed")


def _nobody_asked(engines: Sequence[Engine], standing: Standing) -> ApiError:
    wait = max(1, ceil(min((standing.breakers.shut_for(engine.name) for engine in engines), default=0.0)))
    if all(engine.up is False for engine in engines):
        message = "No engine for this model can be reached at present."
        return unavailable(message, code="no_engine", retry_after=wait)
    message = "The engines of this model have failed or are full, and are left alone for a moment."
    return unavailable(message, code="circuit_open", retry_after=wait)
