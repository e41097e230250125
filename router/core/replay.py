"""A kept answer in the form that a request asks for."""

from typing import Protocol

import msgspec

from router.core.choices import frames_from_body
from router.core.messages import frames_from_message
from router.core.request import Request
from router.core.responses import frames_from_response
from router.core.sse import DONE
from router.core.types import Endpoint


class Forms(Protocol):
    """An answer in the forms that there are of it; see types.Entry."""

    @property
    def body(self) -> bytes | None: ...

    @property
    def frames(self) -> bytes | None: ...

    @property
    def usage_frame(self) -> bytes | None: ...


def replay(entry: Forms, request: Request) -> bytes | None:
    """The answer in the form that the request asks for; None where it has none, or cannot be read."""
    if not request.stream:
        return entry.body
    if entry.frames is not None:
        if request.endpoint in (Endpoint.RESPONSES, Endpoint.MESSAGES):
            return entry.frames
        usage = entry.usage_frame if request.include_usage else None
        return entry.frames + (usage or b"") + DONE
    try:
        return _frames(request, entry.body or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _frames(request: Request, body: bytes) -> bytes | None:
    match request.endpoint:
        case Endpoint.RESPONSES:
            return frames_from_response(body)
        case Endpoint.MESSAGES:
            return frames_from_message(body)
    return frames_from_body(request.endpoint, body, include_usage=request.include_usage)
