"""The trace of a request as the flow sees it. Most requests are not traced, and theirs does nothing.

See router.flow.trace.recorded_trace for the other one.
"""

from collections.abc import Awaitable
from typing import Final, Protocol, TypeVar

from router.flow.lookup import Lookup

T = TypeVar("T")


class TracedEngine(Protocol):
    """What is recorded of an engine; see Engine."""

    name: str
    model: str

    @property
    def address(self) -> str: ...


class TracedResponse(Protocol):
    """What is recorded of an engine's response; see EngineResponse."""

    @property
    def status(self) -> int: ...

    @property
    def connect_seconds(self) -> float | None: ...


class GenerationTrace:
    """The attempts of a generation at engines, for the request that started it."""

    __slots__ = ()

    def traceparent(self) -> str | None:
        """Of the request, for requests in other processes that share the generation; None if it is not traced."""
        return None

    def queued(self, slot: Awaitable[T]) -> Awaitable[T]:
        """The same, as a wait in the queue for an engine. Its result is None if there is no slot."""
        return slot

    def start_attempt(self, engine: TracedEngine, traceparent: str | None) -> str | None:
        """Returns the `traceparent` for the engine. `traceparent`: what it gets if the request is not traced."""
        return traceparent

    def on_response(self, response: TracedResponse) -> None:
        pass

    def end_attempt(self, error_type: str | None = None) -> None:
        """Ends the last attempt, unless it has ended. `error_type`: None if it succeeded."""

    def on_continued(self, tokens: int) -> None:
        """The last attempt goes on with a stream of which so many tokens had been generated."""

    def start_write(self) -> None:
        """The response is written to the cache."""

    def end_write(self, result: str) -> None:
        """`result`: see entry_store.WriteResult."""

    def finish(self, generation: object, error_type: str | None) -> None:
        """`generation`: its record, whose facts are final."""


class RequestTrace:
    """The lookups of a request in the cache, and the generation that it waits for."""

    __slots__ = ()

    def new_generation(self) -> GenerationTrace:
        return UNTRACED_GENERATION

    def start_lookup(self) -> None:
        pass

    def end_lookup(self, lookup: Lookup) -> None:
        pass

    def set_leader(self, generation: GenerationTrace, traceparent: str | None) -> None:
        """The request waits for a generation of another request.

        `generation`: of this process. `traceparent`: of a leader in another process, if that is traced.
        """

    def finish(self, exchange: object, ended_at: float) -> None:
        """`exchange`: that of the request, whose facts are final."""


UNTRACED_GENERATION: Final = GenerationTrace()
UNTRACED: Final = RequestTrace()
