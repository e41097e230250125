"""What an in-flight request is started with."""

from collections.abc import Callable, Sequence

import msgspec

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.flow.attempts.wait_plan import WaitPlan
from router.flow.body_budget import BodyAllocation
from router.flow.exchange import GenerationRecord
from router.upstream.engine import Engine

StoreResponse = Callable[[RecordedResponse | NotStoredReason, GenerationRecord], None]
"""Stores a response without waiting, or gets why it is not to be stored.

Redis executes the write before any command that this process sends later.
"""


class NewGeneration(msgspec.Struct, kw_only=True, frozen=True, eq=False):
    """A generation that is to begin.

    - `order_engines` returns the engines to try. It is called once this process is known to be the leader. Raises
      ApiError.
    - `store_response`: None if the response is not stored.
    - `wait_plan`: how it waits for an engine to start; None if it does not.
    - `body_allocation`: the memory of the request's body, which is released when the generation has ended.
    - `replaced_entry_created`: when the stored entry was written that cannot be served and may be replaced, if there is
      one; in seconds since the epoch.
    """

    request: InferenceRequest
    record: GenerationRecord
    order_engines: Callable[[], Sequence[Engine]]
    store_response: StoreResponse | None = None
    documents: tuple[str, ...] = ()
    wait_plan: WaitPlan | None = None
    body_allocation: BodyAllocation | None = None
    replaced_entry_created: float | None = None
