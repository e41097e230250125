"""Who decides about an exchange that is silent. This package knows sockets, and not what is behind them."""

from typing import Protocol

from router.net.client.errors import EngineError


class WatchedExchange(Protocol):
    """An exchange from its request to the end of its response.

    - `heard_at`: by the clock of the event loop, the last byte of the response, or when the request was sent.
    - `has_response`: a byte of the response has come.
    - `is_bound`: nobody else can give the rest of the response, so nothing is gained by ending it early. It may take
      time to find out, so a watch asks only when the server is down.
    """

    @property
    def heard_at(self) -> float: ...

    @property
    def has_response(self) -> bool: ...

    def is_bound(self) -> bool: ...

    def abort(self, failure: EngineError | None = None) -> None:
        """Ends it with `failure`, which the caller that waits for the response gets."""


class Watch(Protocol):
    """Watches the exchanges with one server.

    - `begin` is called when a request is sent, and `end` once, when the exchange ends or is not watched any more.
    - `silent_until` is called when a limit for silence has passed; the exchange fails if it returns no later instant.
    """

    def begin(self, exchange: WatchedExchange) -> None: ...

    def end(self, exchange: WatchedExchange) -> None: ...

    def silent_until(self, exchange: WatchedExchange, limit: float) -> float:
        """`limit`: how many seconds it may be silent."""

    def timed_out(self, exchange: WatchedExchange) -> EngineError:
        """The failure of an exchange that has been silent for too long, or exceeds its total time."""
