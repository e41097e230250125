"""The form of an endpoint's errors: as a JSON body, and as the event that ends a stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from router.errors import ApiError


class BrokenStream(NamedTuple):
    """A stream that ends with an error, as far as the event that ends it depends on it.

    - `first`, `last`: the bytes of its first and its last events; both are empty before the first token.
    - `request_id`, `model`: of the request; the model is empty if it is unknown. `now`: seconds since the epoch.
    """

    request_id: str
    model: str = ""
    now: int = 0
    first: bytes = b""
    last: bytes = b""


@dataclass(frozen=True, slots=True)
class ErrorEnvelope:
    """How the clients of an endpoint read errors.

    - `body`: the JSON body, for a request with this id.
    - `frame`: the event that ends a stream which fails; nothing follows it.
    - `streamed_codes`: with one of these, the answer to a request for a stream is a stream with `frame`, status 200.
    """

    body: Callable[[ApiError, str], bytes]
    frame: Callable[[ApiError, BrokenStream], bytes]
    streamed_codes: tuple[str, ...] = ()


def openai_body(error: ApiError, _request_id: str) -> bytes:
    return error.body()


def _openai_frame(error: ApiError, _stream: BrokenStream) -> bytes:
    return error.frame()


OPENAI_ERRORS: Final = ErrorEnvelope(openai_body, _openai_frame)
