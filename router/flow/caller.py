"""The client of a request: how it is reached, and what it asks for besides the body."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, Protocol

from router.core.endpoints.conversations.turn_at_engine import TurnAtEngine
from router.core.routing.session import Session
from router.flow.body_budget import BodyAllocation
from router.shared.quota.rate_limits import Reservation
from router.upstream.engine import Engine

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
"""Sends a part of the response, as ASGI's `send`."""


class ClientOfRequest(Protocol):
    """The part of a ClientConnection that the flow needs."""

    def cancel_on_disconnect(self) -> None:
        """From now on, the request's task is cancelled when the client disconnects."""

    def start_response(self, status: int, header_bytes: bytes, content_length: int | None) -> None:
        """Starts the response; see ClientConnection."""

    def can_break_off(self) -> bool:
        """Whether its client can distinguish an aborted stream from a complete one; see ClientConnection."""

    def try_send(self, data: bytes) -> bool:
        """Sends a part of a started response; False if it cannot be sent now. See ClientConnection."""


class RunningHeartbeat:
    """Of a response that is no stream, or comes from the cache: it does nothing. See router.flow.heartbeat."""

    __slots__ = ()

    def expect_start(self, model: str, waits: Callable[[], bool]) -> None:
        pass

    def pass_comments(self, comments: bytes) -> None:
        pass

    def follow(self, position: Callable[[], int]) -> None:
        pass

    def stop(self) -> None:
        pass


NO_HEARTBEAT: Final = RunningHeartbeat()

_CLAUDE_CODE: Final = b"claude-cli/"


class Caller:
    """- `session`: that of its headers, else of the stored response that it continues.
    - `max_ttft`: its X-Max-TTFT in seconds.
    - `form_type`: the request's Content-Type at an endpoint that takes a form; None at the others.
    - `request_id`: the router's own for the request, for engines; None if the client has chosen it, or one has got it.
    - `prefer`: its `Prefer`, empty without one and where no request waits for an engine to start.
    - `heartbeat`: of a stream that is not served from the cache; to be stopped at the end of the request.
    - `scope`: of ASGI.
    - `reservation`: of a tenant with limits, else None; to be released at the end of the request.
    - `has_begun`: it has got the head of the response.
    - `at_engine`: its turn for the engine that may have kept the response before it; None if there is none.
    - `is_kept_by_default`: whether its response at /v1/responses is kept without `store`.
    - `prefers_engine`: whether an engine is tried before the others of its model; None: they are as they are ranked.
    - `priority`: in place of that of its body and tenant, see router.core.quota.priority; None: theirs.
    """

    __slots__ = (
        "at_engine", "body_allocation", "connection", "form_type", "has_begun", "heartbeat", "is_kept_by_default",
        "max_ttft", "prefer", "prefers_engine", "priority", "request_id", "reservation", "scope", "send", "session",
    )  # fmt: skip

    def __init__(
        self, connection: ClientOfRequest, send: Send, body_allocation: BodyAllocation, scope: Mapping[str, Any] = {}
    ) -> None:
        """`body_allocation`: the memory that the body is counted for."""
        self.connection = connection
        self.send = send
        self.scope = scope
        self.body_allocation = body_allocation
        self.session: Session | None = None
        self.form_type: bytes | None = None
        self.request_id: str | None = None
        self.max_ttft: float | None = None
        self.prefer = b""
        self.heartbeat = NO_HEARTBEAT
        self.reservation: Reservation | None = None
        self.has_begun = False
        self.at_engine: TurnAtEngine | None = None
        self.is_kept_by_default = True
        self.prefers_engine: Callable[[Engine], bool] | None = None
        self.priority: int | None = None

    def retries_after_break(self) -> bool:
        """Whether its client repeats a request if the connection breaks during a stream, but not after an error event.

        So does Claude Code 2.1, which gives up at an error event after the first thought of its model.
        """
        headers = self.scope.get("headers", ())
        is_claude_code = any(name == b"user-agent" and value.startswith(_CLAUDE_CODE) for name, value in headers)
        return is_claude_code and self.connection.can_break_off()
