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
from typing import NoReturn

from router.core.endpoints.endpoint import InferenceRequest, Recorder
from router.core.plural import pluralize
from router.errors import ApiError
from router.flow.attempts.continuation.seam import Seam
from router.flow.attempts.dispatch import Dispatcher
from router.flow.attempts.engine_stream import EngineStream
from router.flow.exchange import Continuation, GenerationRecord
from router.flow.sharing.inflight import InFlightRequest
from router.net.client.errors import EngineError, engine_lost
from router.upstream.engine import Engine

log = logging.getLogger("roundhouse.dispatch")


async def run_to_end(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine], stream: EngineStream
) -> None:
    """Publishes everything after the first token, and closes the stream.

    Raises EngineError if the response is not complete: the failure after which nothing went on.
    """
    recorder = stream.recorder
    failed: list[Engine] = []
    while True:
        is_bound = partial(_is_bound, dispatcher, inflight, engines, (*failed, stream.engine), recorder)
        try:
            await stream.run(is_bound)
            return
        except EngineError as error:
            failure = error
        finally:
            stream.close()
        failed.append(stream.engine)
        inflight.record.failed_attempts.append((stream.engine.name, failure.reason))
        await dispatcher.on_failure(inflight, stream.engine, failure)
        next_stream = await _go_on(dispatcher, inflight, engines, failed, recorder, failure)
        if next_stream is None:
            return
        stream = next_stream


async def _go_on(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine], failed: Sequence[Engine],
    recorder: Recorder, failure: EngineError,
) -> EngineStream | None:  # fmt: skip
    """The stream of the engine that goes on; None if the response needed no engine and is complete. Raises `failure`.

    `failed`: the engines that have broken the stream off, the last one last.
    """
    record, broken = inflight.record, failed[-1]
    seam = _seam(dispatcher, inflight, failed, recorder, failure)
    if seam is None:
        raise failure
    if seam.obstacle is not None:
        _give_up(record, broken, failure, seam.obstacle)
    await dispatcher.seam_turns.take()
    at_limit = len(failed) > dispatcher.continuations.per_stream
    able = _able(dispatcher, seam, engines, failed)
    if (at_limit or not able) and not seam.may_be_complete:  # then it need not be read, which takes time
        _give_up(record, broken, failure, "limit" if at_limit else "no-engine")
    seam.read()
    if seam.obstacle is not None:
        _give_up(record, broken, failure, seam.obstacle)
    if seam.is_complete:
        if data := seam.end():
            inflight.publish(data)
        record.continuations.append(Continuation(failure.reason, "complete"))
        return None
    candidates = seam.candidates(able) if not at_limit else []
    if not candidates:
        _give_up(record, broken, failure, "limit" if at_limit else "no-engine")
    before = record.attempt
    # Before the wait: the client may leave at any time, and its tenant pays for the seconds so far.
    record.attempt = before.broke_off(time.perf_counter())
    record.trace.end_attempt(failure.reason)
    try:
        stream, restart = await dispatcher.continue_stream(inflight, seam, candidates)
    except asyncio.CancelledError:  # every client has left, or the router stops
        record.continuations.append(Continuation(failure.reason, "cancelled"))
        raise
    except ApiError as refusal:
        record.attempt = before  # the response ends as the broken engine's
        _give_up(record, broken, failure, refusal.reason)
    record.prompt.on_first_token(time.perf_counter())  # what the in-flight request publishes is not its first any more
    so_far = seam.so_far
    tokens = so_far.tokens if so_far is not None else 0
    record.trace.on_continued(tokens)
    record.continuations.append(
        Continuation(failure.reason, "continued", stream.engine.name, tokens, seam.repeated_tokens, exact=restart.exact)
    )
    log.warning(
        "request %s: engine %s: %s (%s) after %s; engine %s goes on",
        record.request_id, broken.name, failure.full_message, failure.reason, pluralize(tokens, "token"),
        stream.engine.name,
    )  # fmt: skip
    return stream


def _seam(
    dispatcher: Dispatcher, inflight: InFlightRequest, failed: Sequence[Engine], recorder: Recorder,
    failure: EngineError,
) -> Seam | None:  # fmt: skip
    """None if streams of this model are not continued."""
    record, limits, broken = inflight.record, dispatcher.continuations, failed[-1]
    if dispatcher.continuation_engines is None or not limits.allows(broken.model):
        return None
    return Seam(
        inflight.request, recorder, broken, failure, dispatched_at=record.dispatched_at or 0.0, adapter=record.adapter,
        default_tokens=limits.default_tokens(inflight.request, failed[0]),
    )  # fmt: skip


def _able(dispatcher: Dispatcher, seam: Seam, engines: Sequence[Engine], failed: Sequence[Engine]) -> Sequence[Engine]:
    assert dispatcher.continuation_engines is not None  # else there is no seam
    return seam.able(dispatcher.continuation_engines.find(seam.request, failed[-1].model, engines), failed)


def _is_bound(
    dispatcher: Dispatcher, inflight: InFlightRequest, engines: Sequence[Engine], failed: Sequence[Engine],
    recorder: Recorder,
) -> bool:  # fmt: skip
    """Whether a stream would end if it left its engine, the last of `failed`; as far as is known without reading it."""
    seam = _seam(dispatcher, inflight, failed, recorder, engine_lost())
    if seam is None or seam.obstacle is not None:
        return True
    if seam.may_be_complete:
        return False
    if seam.has_obstacle:
        return True
    return len(failed) > dispatcher.continuations.per_stream or not _able(dispatcher, seam, engines, failed)


def _give_up(record: GenerationRecord, engine: Engine, failure: EngineError, result: str) -> NoReturn:
    record.continuations.append(Continuation(failure.reason, result))
    log.warning(
        "request %s: engine %s: %s (%s); no engine goes on (%s)",
        record.request_id, engine.name, failure.full_message, failure.reason, result,
    )  # fmt: skip
    raise failure


def has_survivor(record: GenerationRecord) -> bool:
    """Whether the last engine lived to the end of its response: one that lacks only its end needs no other engine."""
    return not record.continuations or record.continuations[-1].result != "complete"


def is_exact(record: GenerationRecord, request: InferenceRequest) -> bool:
    """Whether the response is what one engine would have generated; so it is if no other went on."""
    return not record.continuations or (request.temperature == 0 and all(each.exact for each in record.continuations))
