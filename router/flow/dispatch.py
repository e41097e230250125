"""From a plan to an engine at work: the first engine that gives a token has the request.

Nothing has been sent to the client before that, so until then another engine can take over, and nobody notices.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from math import ceil
from typing import Final, TypeVar

from router.core.error_shapes import engine_refusal
from router.core.patience import Patience
from router.core.recorders import record_body, recorder_for
from router.core.recording import NotKept, Recorder, Recording
from router.core.request import Request, for_engine
from router.core.retry import read_retry_after
from router.errors import UPSTREAM, ApiError, unavailable
from router.flow.admission import Admission, NoRoomError, Place
from router.flow.deadline import Deadline
from router.flow.exchange import Work
from router.flow.standing import Pass, Standing
from router.upstream.catalog import Engine
from router.upstream.client import EngineClient, EngineError, EngineResponse

log = logging.getLogger("roundhouse.dispatch")

T = TypeVar("T")

MAX_ANSWER: Final = 256 << 20
"""Bytes of a JSON answer that are read; an engine that sends more has gone wrong."""

_MAX_ERROR: Final = 64 << 10


class Generation:
    """An engine at work on a request, of which the first token is there; it is the client's turn to take it.

    - `first`: what the engine has said so far, as it may go on.
    - `next` gives what comes, and nothing at the end; `recorder` then says what it was.
    - Once `aclose` has been called, the engine is free and no longer counted as busy with this.
    """

    __slots__ = ("_deadline", "_patience", "_place", "_response", "_standing", "first", "recorder")

    def __init__(
        self,
        place: Place,
        response: EngineResponse,
        recorder: Recorder,
        deadline: Deadline,
        patience: Patience,
        standing: Standing,
    ) -> None:
        self.recorder = recorder
        self.first = b""
        self._place = place
        self._response = response
        self._deadline = deadline
        self._patience = patience
        self._standing = standing

    @property
    def engine(self) -> Engine:
        return self._place.engine

    async def begin(self, until: float) -> None:
        """Waits for the first token, at most until that instant. Raises EngineError."""
        loop = asyncio.get_running_loop()
        while not (self.recorder.started or self.recorder.ended):  # an answer of no tokens is an answer
            self.first += await self._take(until - loop.time())

    async def next(self) -> bytes:
        """Whole events, as soon as they are there. Raises EngineError when the engine fails or stalls."""
        while not self.recorder.ended:
            try:
                data = await self._take(self._patience.between_tokens)
            except EngineError as error:
                self._standing.failed(self.engine, error)
                raise
            if data:
                return data
        self._standing.succeeded(self.engine)
        return b""

    async def _take(self, seconds: float) -> bytes:
        recorder = self.recorder
        if recorder.failure is None:
            try:
                chunk = await self._deadline.wait(self._response.next(), seconds)
            except TimeoutError:
                raise EngineError("timeout", "the engine took too long") from None
            if not chunk:
                raise EngineError("broken-off", "the engine broke its answer off")
            data = recorder.feed(chunk)
            if data or recorder.failure is None:
                return data
        raise EngineError("error-frame", "the engine reported an error")

    async def aclose(self) -> None:
        self._place.close()
        await self.release()

    async def release(self) -> None:
        self._deadline.close()
        await self._response.aclose()


class Dispatcher:
    """Sends requests to engines.

    - The engines of a plan are tried in turn until one answers: those of one model, some of them a second time, then
      those of the next; each failure is noted in the work. Whose breaker is open is left out.
    - What an engine says of the request itself (400, 413, 422) goes to the client as it stands, and nobody else is
      asked. Any other refusal is the engine's failure.
    - An engine is asked once there is a place for that; the place is given back whatever happens.
    """

    def __init__(
        self, client: EngineClient, admission: Admission, patience: Patience, standing: Standing, *, max_entry: int
    ) -> None:
        self._client = client
        self._admission = admission
        self._patience = patience
        self._standing = standing
        self._max_entry = max_entry

    async def stream(self, work: Work, request: Request, engines: Sequence[Engine]) -> Generation:
        """A generation whose first token is there. Raises ApiError."""

        async def attempt(place: Place) -> Generation:
            engine = place.engine
            deadline = Deadline(total=self._total(request, engine))
            until = asyncio.get_running_loop().time() + self._patience.first_token
            response = await self._ask(work, request, engine, deadline)
            recorder = recorder_for(request.endpoint, self._max_entry)
            generation = Generation(place, response, recorder, deadline, self._patience, self._standing)
            try:
                await generation.begin(until)
            except BaseException:
                await generation.release()
                raise
            return generation

        return await self._first_that(attempt, work, engines)

    async def whole(self, work: Work, request: Request, engines: Sequence[Engine]) -> tuple[bytes, Recording | NotKept]:
        """A JSON answer, and what is to be kept of it. Raises ApiError."""

        async def attempt(place: Place) -> tuple[bytes, Recording | NotKept]:
            engine = place.engine
            deadline = Deadline(total=self._total(request, engine))
            response = await self._ask(work, request, engine, deadline)
            async with response:
                try:
                    body = await deadline.wait(response.read(MAX_ANSWER), self._total(request, engine))
                except TimeoutError:
                    raise EngineError("timeout", "the engine took too long") from None
                finally:
                    deadline.close()
            recording = record_body(request, body, self._max_entry)
            if recording is NotKept.ERROR:
                raise EngineError("malformed", "the engine's answer is not one")
            self._standing.succeeded(engine)
            place.close()
            return body, recording

        return await self._first_that(attempt, work, engines)

    def _total(self, request: Request, engine: Engine) -> float:
        return self._patience.total(request.max_tokens, engine.max_model_len)

    # -- whose turn it is -------------------------------------------------------------------------------------------

    async def _first_that(self, attempt: Callable[[Place], Awaitable[T]], work: Work, engines: Sequence[Engine]) -> T:
        """What the first attempt gives that does not fail; the place is its own then."""
        last: EngineError | None = None
        no_room: NoRoomError | None = None
        self._standing.asked()
        for _, group in groupby(engines, key=lambda engine: engine.model):
            turns = self._standing.turns(list(group))
            while open_ := await turns.next():
                try:
                    place = await self._admission.enter(work.tenant, open_)
                except NoRoomError as error:
                    no_room = error
                    break  # the engines of the next model may have room
                engine = place.engine
                turns.took(engine)
                try:
                    pass_ = await self._standing.admit(engine, after=last)
                    if pass_ is not None:
                        return await self._try(attempt, work, place, pass_)
                except EngineError as error:
                    last = error
                    turns.failed(engine, error)
                    work.attempts.append((engine.name, error.reason))
                    log.warning("request %s: engine %s: %s (%s)", work.request_id, engine.name, error, error.reason)
                except BaseException:
                    place.close()
                    raise
                place.close()
        raise no_room or _told(last, engines, self._standing)

    @staticmethod
    async def _try(attempt: Callable[[Place], Awaitable[T]], work: Work, place: Place, pass_: Pass) -> T:
        """One attempt."""
        engine = place.engine
        work.engine = engine.name
        work.fallback = engine.model if engine.model != work.model else None
        work.dispatched = work.dispatched or time.perf_counter()
        with pass_:
            return await attempt(place)

    # -- one attempt ------------------------------------------------------------------------------------------------

    async def _ask(self, work: Work, request: Request, engine: Engine, deadline: Deadline) -> EngineResponse:
        """Sends the request; returns an answer with status 200. Raises EngineError, or ApiError for the client's."""
        # A JSON answer has a head only when it is whole, so that only the total can be its limit.
        seconds = self._patience.first_token if request.stream else self._total(request, engine)
        headers = {"x-request-id": work.request_id}
        if work.traceparent is not None:
            headers["traceparent"] = work.traceparent
        try:
            response = await deadline.wait(
                self._client.post(engine, request.endpoint, for_engine(request, engine.served_model), headers), seconds
            )
            if response.status == 200:
                return response
            async with response:
                body = await deadline.wait(response.read(_MAX_ERROR), self._patience.between_tokens)
        except TimeoutError:
            raise EngineError("timeout", "the engine took too long") from None
        finally:
            # Whoever waits for the rest of a good answer sets the timer anew.
            deadline.close()
        if (refusal := engine_refusal(response.status, body)) is not None:
            raise refusal
        raise EngineError(
            f"status-{response.status}",
            f"the engine answered with status {response.status}",
            read_retry_after(response.retry_after, time.time()),
        )


def _told(error: EngineError | None, engines: Sequence[Engine], standing: Standing) -> ApiError:
    """What the client is told when no engine could do it. `error`: that of the last attempt, if there was one."""
    if error is None:
        return _nobody_asked(engines, standing)
    match error.reason:
        case "connect":
            return unavailable("No engine for this model can be reached at present.", code="no_engine")
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
