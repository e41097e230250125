"""One request to one engine, in progress."""

from router.core.endpoints.recording.recorded_response import NotStoredReason
from router.flow.attempts.admission import Slot
from router.flow.exchange import AttemptFacts
from router.upstream.engine import Engine


class Attempt:
    """An attempt that succeeds owns its slot.

    - `request_id`, `traceparent`: what the engine gets. `sent_at`: by time.perf_counter.
    - `deviation`: why the response does not match the key of the request; None if it does.
    - `facts`: what is noted of it.
    """

    def __init__(
        self, slot: Slot, *, request_id: str, traceparent: str | None, sent_at: float,
        deviation: NotStoredReason | None, facts: AttemptFacts,
    ) -> None:  # fmt: skip
        self.slot = slot
        self.request_id = request_id
        self.traceparent = traceparent
        self.sent_at = sent_at
        self.deviation = deviation
        self.facts = facts

    @property
    def engine(self) -> Engine:
        return self.slot.engine
