"""The fields of request bodies that the router reads itself: those of all endpoints, and types that several share."""

from typing import Annotated, Any, Final

import msgspec

from router.core.quota.priority import MAX_PRIORITY, MIN_PRIORITY
from router.errors import ApiError, bad_request


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


def wants_usage(stream_options: Any) -> bool:
    """Whether a client that streams gets the usage.

    As vLLM, and unlike OpenAI, the router takes `include_usage` as true where only `continuous_usage_stats` is given.
    """
    if not isinstance(stream_options, dict):
        return False
    return bool(stream_options.get("include_usage", stream_options.get("continuous_usage_stats")))


EngineId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}\Z")]
"""An id that a client may pass to an engine. It cannot hold an address, as some vLLM connectors parse one from ids."""

ENGINE_ID_FORM: Final = "must be 1 to 128 letters, digits, `_` and `-`"


class RequestFields(msgspec.Struct):
    """The fields of a body that must have valid types. Each endpoint adds its own in a subclass.

    `model` may be missing, null or empty; see Catalog.requested_name.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    request_id: EngineId | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None

    def validate(self) -> ApiError | None:
        """The error for a field that has a valid type but is missing, empty or not supported."""
        return None

    def max_answer_tokens(self) -> int | None:
        return self.max_tokens


class InputMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any] | str] | None = None


def missing_field_error(name: str) -> ApiError:
    return bad_request(f"`{name}` is required.", param=name)


def no_messages_error() -> ApiError:
    return bad_request("`messages` must not be empty.", param="messages")
