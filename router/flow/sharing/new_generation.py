"""What an in-flight request is started with."""

from collections.abc import Callable, Sequence

from router.core.endpoints.endpoint import InferenceRequest, Prompt
from router.core.endpoints.recording.choices import choice_count
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.flow.attempts.routed_prompt import UNROUTED, RoutedPrompt
from router.flow.attempts.wait_plan import WaitPlan
from router.flow.body_budget import BodyAllocation
from router.flow.caller import Caller
from router.flow.exchange import Exchange, GenerationRecord, new_request_id
from router.flow.parsed_request import ParsedRequest
from router.flow.request_origin import RequestOrigin
from router.flow.trace.request_trace import UNTRACED_GENERATION, GenerationTrace
from router.upstream.engine import Engine

StoreResponse = Callable[[RecordedResponse | NotStoredReason, GenerationRecord, GenerationTrace], None]
"""Stores a response without waiting, or gets why it is not to be stored.

Redis executes the write before any command that this process sends later, unless it is down.
"""


class NewGeneration:
    """A generation that is to begin.

    - `prompt`, `trace`: notified of its events; see RoutedPrompt and GenerationTrace.
    - `order_engines` returns the engines to try. It is called once this process is known to be the leader. Raises
      ApiError.
    - `store_response`: None if the response is not stored.
    - `adjusted_fields`: see Selection.
    - `wait_plan`: how it waits for an engine to start; None if it does not.
    - `body_allocation`: the memory of the request's body, which is released when the generation has ended.
    - `replaced_entry_created`: when the stored entry was written that cannot be served and may be replaced, if there is
      one; in seconds since the epoch.
    """

    prompt: RoutedPrompt = UNROUTED
    trace: GenerationTrace = UNTRACED_GENERATION

    def __init__(
        self, *, request: InferenceRequest, record: GenerationRecord, order_engines: Callable[[], Sequence[Engine]],
        store_response: StoreResponse | None = None, documents: tuple[str, ...] = (),
        adjusted_fields: tuple[str, ...] = (), wait_plan: WaitPlan | None = None,
        body_allocation: BodyAllocation | None = None, replaced_entry_created: float | None = None,
    ) -> None:  # fmt: skip
        self.request = request
        self.record = record
        self.order_engines = order_engines
        self.store_response = store_response
        self.documents = documents
        self.adjusted_fields = adjusted_fields
        self.wait_plan = wait_plan
        self.body_allocation = body_allocation
        self.replaced_entry_created = replaced_entry_created


def new_origin(exchange: Exchange, parsed: ParsedRequest, caller: Caller, priority: int) -> RequestOrigin:
    # Engines get the request id only if the router has made it and no earlier attempt of this request has used it.
    # A client's id never goes to engines, because some connectors of vLLM read addresses out of request ids.
    engine_request_id, caller.request_id = caller.request_id or new_request_id(), None
    exchange.engine_request_id = engine_request_id if engine_request_id != exchange.request_id else None
    request = parsed.request
    origin = RequestOrigin(
        request_id=exchange.request_id,
        engine_request_id=engine_request_id,
        tenant=exchange.tenant,
        model=parsed.model.reported_name,
        task=parsed.task,
        stream=request.stream,
    )
    origin.traceparent, origin.tracestate, origin.key_id = exchange.traceparent, exchange.tracestate, exchange.key_id
    origin.priority, origin.log_odds = priority, parsed.log_odds
    origin.adapter, origin.engine_revision = parsed.model.adapter, parsed.engine_revision
    origin.choices = choice_count(request.fields, takes_prompt_list=isinstance(request.endpoint.input, Prompt))
    origin.at_engine = caller.at_engine
    return origin
