"""Sends requests to engines after a wait for one to start, where that is needed; see router.flow.attempts.waking."""

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import TypeVar

from router.flow.attempts.dispatch import Dispatcher, MakeAttempt
from router.flow.attempts.waking import Waking
from router.flow.sharing.inflight import InFlightRequest
from router.upstream.engine import Engine

T = TypeVar("T")


class WaitingDispatcher:
    """A Dispatch for a router with models that have `wake`."""

    def __init__(self, dispatcher: Dispatcher, waking: Waking) -> None:
        self._dispatcher = dispatcher
        self._waking = waking

    def dispatch(
        self, make_attempt: MakeAttempt[T], inflight: InFlightRequest, engines: Sequence[Engine]
    ) -> Awaitable[T]:
        plan = inflight.wait_plan
        if plan is None:
            return self._dispatcher.dispatch(make_attempt, inflight, engines)
        send = partial(self._dispatcher.dispatch, make_attempt, inflight)
        return self._waking.send(inflight, plan, engines, send)
