"""What the simulator has seen, for tests to look at and to wait for."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class RequestCounts:
    """Totals since the start; `in_flight` is of now."""

    received: int = 0
    """Requests to the generating endpoints, those that were refused too."""
    started: int = 0
    finished: int = 0
    aborted: int = 0
    """Generations whose client left."""
    failed: int = 0
    """Generations that a fault ended."""
    tokens_sent: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class RequestLog:
    """Counts and the last requests, with somebody to wake whenever they change."""

    counts: RequestCounts = field(default_factory=RequestCounts)
    requests: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=100))
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record_request(self, path: str, headers: Mapping[str, str], body: object) -> None:
        """A request came in."""
        self.counts.received += 1
        self.requests.append({"path": path, "headers": dict(headers), "body": body})
        self.notify()

    def record_tokens_sent(self, tokens: int) -> None:
        """Tokens went out to a client."""
        self.counts.tokens_sent += tokens
        self.notify()

    @contextmanager
    def track_generation(self) -> Iterator[None]:
        """Counts one generation, and how it ended by how the block is left."""
        self.counts.started += 1
        self.counts.in_flight += 1
        self.notify()
        ending = "failed"
        try:
            yield
            ending = "finished"
        except asyncio.CancelledError:
            ending = "aborted"
            raise
        finally:
            self.counts.in_flight -= 1
            setattr(self.counts, ending, getattr(self.counts, ending) + 1)
            self.notify()

    async def wait_for(self, goals: Mapping[str, int]) -> None:
        """Wait until every named count is at least its goal; `in_flight` has to be exactly it."""
        while not self._reached(goals):
            self._changed.clear()
            await self._changed.wait()

    def _reached(self, goals: Mapping[str, int]) -> bool:
        counts = asdict(self.counts)
        return all(
            counts[name] == goal if name == "in_flight" else counts[name] >= goal for name, goal in goals.items()
        )

    def notify(self) -> None:
        """Wake those who wait; they look for themselves whether it was for them."""
        if not self._changed.is_set():
            self._changed.set()
