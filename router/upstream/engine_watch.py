"""The requests that wait for one engine: how long they may be silent, and when it has lost them."""

from collections.abc import Callable
from math import inf
from time import monotonic

from router.core.resilience.signs_of_life import CheckResult, SignsOfLife
from router.net.client.errors import EngineError, engine_lost, slow_response, timed_out
from router.net.client.watch import WatchedExchange


class EngineWatch:
    """Implements router.net.client.watch.Watch for one engine, and gets the results of its checks.

    Each process has its own, as it has its own probe. There are as many exchanges as requests in flight.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: that of the event loop."""
        self._clock = clock
        self._exchanges: set[WatchedExchange] = set()
        self._heard_at = -inf  # the last byte of the exchanges that have ended
        self.signs = SignsOfLife()

    def begin(self, exchange: WatchedExchange) -> None:
        self._exchanges.add(exchange)

    def end(self, exchange: WatchedExchange) -> None:
        self._exchanges.discard(exchange)
        if exchange.has_response and exchange.heard_at > self._heard_at:
            self._heard_at = exchange.heard_at

    def silent_until(self, exchange: WatchedExchange, limit: float) -> float:
        return self.signs.silent_until(exchange.heard_at, limit)

    def timed_out(self, exchange: WatchedExchange) -> EngineError:
        others = (each.heard_at for each in self._exchanges if each is not exchange and each.has_response)
        works = self.signs.progressed_since(exchange.heard_at, max(others, default=self._heard_at))
        return slow_response() if works else timed_out()

    def on_check(
        self, result: CheckResult, running: float | None = None, counters: tuple[float, ...] | None = ()
    ) -> None:
        """See SignsOfLife."""
        self.signs = self.signs.on_check(self._clock(), result, running, counters)

    @property
    def has_lost_requests(self) -> bool:
        return self.signs.down_checks > 0 and any(map(self._is_lost, self._exchanges))

    def abort_lost(self) -> int:
        """Ends the exchanges that no response will come for, so that another engine takes over; returns how many.

        Those that no other engine can take over stay: this one may be back before their timeouts.
        """
        lost = [each for each in self._exchanges if self._is_lost(each) and not each.is_bound()]
        for exchange in lost:
            exchange.abort(engine_lost())
        return len(lost)

    def _is_lost(self, exchange: WatchedExchange) -> bool:
        return self.signs.has_lost(exchange.heard_at if exchange.has_response else -inf)
