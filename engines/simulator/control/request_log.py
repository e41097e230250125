"""The requests and counts that tests read and wait for."""

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field


@dataclass(slots=True)
class RequestCounts:
    """Totals since the start; `in_flight` is the current number."""

    received: int = 0
    """Requests to the generating endpoints, including refused ones."""
    started: int = 0
    finished: int = 0
    aborted: int = 0
    """Generations whose client disconnected."""
    failed: int = 0
    """Generations that a fault ended."""
    tokens_sent: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class RequestLog:
    """Counts and the last requests; `wait_for` wakes up at each change."""

    counts: RequestCounts = field(default_factory=RequestCounts)
    requests: deque[dict[str, object]] = field(default_factory=lambda: deque(maxlen=100))
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record_request(self, path: str, headers: Mapping[str, str], body: object) -> None:
        self.counts.received += 1
        self.requests.append({"path": path, "headers": dict(headers), "body": body})
        self.notify()

    def record_tokens_sent(self, tokens: int) -> None:
        self.counts.tokens_sent += tokens
        self.notify()

    @contextmanager
    def track_generation(self) -> Iterator[None]:
        """Counts one generation; the way in which the block ends tells its outcome."""
        self.counts.started += 1
        self.counts.in_flight += 1
        self.notify()
        outcome = "failed"
        try:
            yield
            outcome = "finished"
        except asyncio.CancelledError:
            outcome = "aborted"
            raise
        finally:
            self.counts.in_flight -= 1
            setattr(self.counts, outcome, getattr(self.counts, outcome) + 1)
            self.notify()

    async def wait_for(self, goals: Mapping[str, int]) -> None:
        """Waits until every named count is at least its goal; `in_flight` must equal its goal."""
        while not self._reached(goals):
            self._changed.clear()
            await self._changed.wait()

    def _reached(self, goals: Mapping[str, int]) -> bool:
        counts = asdict(self.counts)
        return all(
            counts[name] == goal if name == "in_flight" else counts[name] >= goal for name, goal in goals.items()
        )

    def notify(self) -> None:
        if not self._changed.is_set():
            self._changed.set()
