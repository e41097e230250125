"""A kept answer in the form that a request asks for."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from router.core.choices import body_from_events, frames_from_body
from router.core.compaction import compacted
from router.core.messages import frames_from_message
from router.core.request import Request
from router.core.responses import frames_from_response
from router.core.sse import DONE, payload, split
from router.core.types import Endpoint

_COMPLETE: Final = (Endpoint.RESPONSES, Endpoint.MESSAGES)
"""Their streams are kept whole, and have been told in JSON when they were recorded, if that can be done."""

_events = msgspec.json.Decoder(list[dict[str, Any]]).decode


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
        return entry.body if entry.body is not None else _made(_body, request, entry)
    if entry.frames is not None:
        if request.endpoint in _COMPLETE:
            return entry.frames
        usage = entry.usage_frame if request.include_usage else None
        return b"".join((entry.frames, usage or b"", DONE))
    return _made(_frames, request, entry)


def _made(make: Callable[[Request, Forms], bytes | None], request: Request, entry: Forms) -> bytes | None:
    try:
        return make(request, entry)
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _body(request: Request, entry: Forms) -> bytes | None:
    if entry.frames is None or request.endpoint in _COMPLETE:
        return None
    payloads = [data for frame in split(entry.frames) if (data := payload(frame)) is not None]
    events = _events(b"[%b]" % b",".join(compacted(request.endpoint, payloads)))
    usage = msgspec.json.decode(payload(entry.usage_frame) or b"") if entry.usage_frame else None
    return body_from_events(request.endpoint, events, usage)


def _frames(request: Request, entry: Forms) -> bytes | None:
    body = entry.body or b""
    match request.endpoint:
        case Endpoint.RESPONSES:
            return frames_from_response(body)
        case Endpoint.MESSAGES:
            return frames_from_message(body)
    return frames_from_body(request.endpoint, body, include_usage=request.include_usage)
