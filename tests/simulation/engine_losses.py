"""The invariants of a request that ends each engine that gets it; see router.core.resilience.engine_losses.

Theory of operation. A history has one such request, with the same bytes each time, and a history is shorter than the
time for which a router counts its losses. So all generations of its question at one router process count together.
"""

import re
from collections.abc import Iterable
from typing import Final

from tests.simulation.history import History, RequestRecord, SimulatedGeneration

MAX_LOSSES: Final = 2

_NOTICE: Final = 0.2
"""Seconds until a router knows that an engine has ended: a message from it, and a check of it."""

_DELAYS: Final = ("freeze", "slowness")
"""The faults during which a router does not get to know it."""

_UNREACHABLE: Final = ("deafness", "partition")
"""The faults during which a router opens no connection. So its check of an engine times out, which counts as busy."""

_LAST_PIECES: Final = 3
"""The pieces after each of which a slow client may pause before it has the end: data, the error, and the end."""

_CODE: Final = re.compile(r'"code": ?"(\w+)"')


def is_poison(history: History, tenant: str, question: int) -> bool:
    """`tenant`: "" if it is unknown."""
    poison = history.poison
    return poison is not None and question == poison.question and tenant in ("", poison.tenant)


def engines_survive(history: History) -> list[str]:
    """8. A router sends a request to no engine after it has lost two with it, and reports that as the error."""
    return [*_no_third_engine(history), *_errors_are_clear(history)]


def may_have_ended_engines(history: History, request: RequestRecord) -> bool:
    """Whether its question was asked when two engines ended, so that it could have been the cause."""
    ends = [fault.started for fault in history.faults if fault.kind == "exit" and fault.started <= request.ended]
    together = [end for end in ends if _is_asked(history, request.question, end)]
    return len(together) >= MAX_LOSSES and error_code(request) == "engine_lost"


def _is_asked(history: History, question: int, end: float) -> bool:
    """Whether a client waits for it, or a router continues it after its client has left.

    An engine need not have begun with it: a request on its way to a process that ends is lost, too.
    """
    spans = [
        *(
            (each.started, each.ended + (_NOTICE if each.ending == "left" else 0.0))
            for each in history.requests
            if each.question == question
        ),
        # It may be lost again on its way to the next engine.
        *(
            (each.ended, each.ended + _NOTICE)
            for each in history.generations
            if each.question == question and each.outcome == "killed"
        ),
    ]
    return any(start <= end <= until for start, until in spans)


def _no_third_engine(history: History) -> list[str]:
    wrong = []
    lost_by_router: dict[str, list[SimulatedGeneration]] = {}
    for generation in history.generations:
        if not is_poison(history, generation.tenant, generation.question):
            continue
        lost = lost_by_router.setdefault(generation.router, [])
        known = [each for each in lost if _is_known(history, each, generation)]
        if _engines(known) >= MAX_LOSSES:
            wrong.append(f"8: {generation} began after {_engines(known)} engines had ended: {known[-1]}")
        lost.append(generation)
    return wrong


def _engines(killed: Iterable[SimulatedGeneration]) -> int:
    """The ends of processes: one process can have several generations of the request."""
    return len({(each.engine, each.ended) for each in killed})


def _is_known(history: History, lost: SimulatedGeneration, generation: SimulatedGeneration) -> bool:
    """Whether the router knew, when it sent the request, that it had lost this engine."""
    if lost.outcome != "killed" or lost.ended > generation.started or _may_be_missed(history, lost):
        return False
    if _asked_at_once(history, lost, generation) < 2:  # one request has its attempts one after the other
        return True
    return _noticed_by(history, lost) < generation.started


def _noticed_by(history: History, lost: SimulatedGeneration) -> float:
    delays = (f.ended for f in history.faults if f.kind in _DELAYS and f.started <= lost.ended + _NOTICE)
    return max((lost.ended, *delays)) + _NOTICE


def _may_be_missed(history: History, lost: SimulatedGeneration) -> bool:
    """Whether its router need never get to know of it."""
    return _is_unchecked(history, lost) or _is_cancelled(history, lost)


def _is_cancelled(history: History, lost: SimulatedGeneration) -> bool:
    """Whether its clients left before the router noticed its end, or at the same instant: a cancellation comes first.

    Its clients: all that asked this router, which may have had several generations of the request at that time.
    """
    asking = [
        request
        for request in history.requests
        if is_poison(history, request.tenant, request.question)
        and request.router == lost.router
        and request.started <= lost.ended <= request.ended
    ]
    by = _noticed_by(history, lost)
    return bool(asking) and all(request.ending == "left" and request.ended <= by for request in asking)


def _is_unchecked(history: History, lost: SimulatedGeneration) -> bool:
    return any(
        fault.kind in _UNREACHABLE
        and fault.target == lost.router
        and fault.started <= lost.ended + _NOTICE
        and fault.ended >= lost.ended
        for fault in history.faults
    )


def _asked_at_once(history: History, lost: SimulatedGeneration, generation: SimulatedGeneration) -> int:
    """The requests that the generation may be for: a router may go on with it when its client has left."""
    return sum(
        is_poison(history, request.tenant, request.question)
        and request.router == generation.router
        and request.started <= generation.started
        and (request.ended >= lost.ended or request.ending == "left")
        for request in history.requests
    )


def _errors_are_clear(history: History) -> list[str]:
    """A follower gets the error of its leader, at another router. Without any engine, that is the error."""
    return [
        f"8: {request} lost its engines and got {error_code(request)!r}"
        for request in history.requests
        if is_poison(history, request.tenant, request.question)
        and request.ending == "failed"
        and not _is_follower(history, request)
        and _engines(_lost_before(history, request)) >= MAX_LOSSES
        and error_code(request) != "engine_lost"
        and not (request.status == 503 and _none_was_left(history, request))
    ]


def _is_follower(history: History, request: RequestRecord) -> bool:
    """Whether it shared the generation of another router, also one that failed."""
    if request.cache == "COALESCED":
        return True
    meanwhile = [
        each
        for each in history.generations
        if is_poison(history, each.tenant, each.question) and request.started <= each.ended <= request.ended
    ]
    has_own = any(each.router == request.router and request.started <= each.started for each in meanwhile)
    return not has_own and any(each.router != request.router and each.outcome == "killed" for each in meanwhile)


def _lost_before(history: History, request: RequestRecord) -> list[SimulatedGeneration]:
    """What its router had lost with it, and knew of when it decided the error. A slow client gets that later."""
    return [
        each
        for each in history.generations
        if each.outcome == "killed"
        and not _may_be_missed(history, each)
        and each.router == request.router
        and is_poison(history, each.tenant, each.question)
        and each.ended + _NOTICE < request.ended - _LAST_PIECES * request.pause
    ]


def _none_was_left(history: History, request: RequestRecord) -> bool:
    return any(fault.kind == "exit" and fault.breaks and fault.started <= request.ended for fault in history.faults)


def error_code(request: RequestRecord) -> str:
    found = _CODE.findall(b"".join(request.body).decode())
    return found[-1] if found else ""
