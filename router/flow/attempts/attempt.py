"""One request to one engine, in progress."""

from typing import NamedTuple

from router.core.endpoints.recording.recorded_response import NotStoredReason
from router.flow.attempts.admission import Slot
from router.flow.exchange import AttemptFacts
from router.upstream.engine import Engine


class Attempt(NamedTuple):
    """An attempt that succeeds owns its slot.

    - `request_id`, `traceparent`: what the engine gets. `sent_at`: by time.perf_counter.
    - `deviation`: why the response does not match the key of the request; None if it does.
    - `facts`: what is noted of it.
    """

    slot: Slot
    request_id: str
    traceparent: str | None
    sent_at: float
    deviation: NotStoredReason | None
    facts: AttemptFacts

    @property
    def engine(self) -> Engine:
        return self.slot.engine
