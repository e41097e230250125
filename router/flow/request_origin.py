"""The request that a generation was started for, apart from its body."""

from router.core.endpoints.conversations.turn_at_engine import TurnAtEngine
from router.core.types import Task
from router.upstream.adapters import Adapter


class RequestOrigin:
    """What the flow decides by, and what engines get besides the body; see Exchange.

    - `request_id`: for the log. `engine_request_id`: never one that a client has chosen.
    - `traceparent`, `tracestate`: for the engine, if the request is not traced; see router.core.trace_context.
    - `key_id`: of the API key. `priority`: see router.core.quota.priority.
    - `model`: the name in metrics. `adapter`: None for a model of the configuration.
    - `engine_revision`: see ParsedRequest.
    - `log_odds`: the classifier's score of the prompt, whose sign gives `task`.
    - `at_engine`: see Caller.
    - `choices`: the number that it asks for; an engine generates them at the same time.
    """

    request_id: str
    engine_request_id: str
    traceparent: str | None = None
    tracestate: str | None = None
    tenant: str
    key_id: str | None = None
    priority: int = 0
    model: str
    adapter: Adapter | None = None
    engine_revision: str | None = None
    task: Task
    log_odds: float = 0.0
    stream: bool
    choices: int = 1
    at_engine: TurnAtEngine | None = None

    def __init__(
        self, *, request_id: str, engine_request_id: str, tenant: str, model: str, task: Task, stream: bool
    ) -> None:
        self.request_id = request_id
        self.engine_request_id = engine_request_id
        self.tenant = tenant
        self.model = model
        self.task = task
        self.stream = stream

    @property
    def shown_model(self) -> str:
        """The name in messages to the client."""
        return self.model if self.adapter is None else self.adapter.id

    @property
    def engine_model(self) -> str:
        """The model of the engines that answer it as it asks."""
        return self.model if self.adapter is None else self.adapter.base
