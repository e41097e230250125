"""What requests have in common that get the same header lines, log line and metric labels, as frozen values.

Theory of operation. A header template, a log-line template and a set of labelled metrics are built once for a kind and
cached under its facts. Their builders get the kind and nothing else, so a fact that is not in the key of the cache
cannot get into a cached value. What differs for each request (ids, key, age, durations, token counts) fills the
templates afterwards.

The facts are taken as plain tuples (router.flow.exchange), which are cheap to make and to hash, once for each request;
a kind, which has names for them, is made from a tuple only where a builder needs it. The types of the tuple are those
of the kind's fields, so a fact that is forgotten is a type error. A client cannot create kinds at will, because the
facts are names from the configuration and from stored entries, or have few values.
"""

from typing import NamedTuple

from router.core.cache.fingerprint import MissReason
from router.core.types import BypassReason, CacheStatus, Task
from router.flow.exchange import Exchange, RequestOutcome, request_facts, response_facts


class ResponseKind(NamedTuple):
    """The facts that the header lines of a response state.

    - `status`: 0 if no response was started.
    - `has_key`: the request has a cache key; `has_age`: the response comes from the store.
    - For the others, see Exchange.
    """

    status: int
    stream: bool
    cache_status: CacheStatus | None
    from_local_cache: bool
    has_key: bool
    has_age: bool
    bypass_reason: BypassReason | None
    miss_reason: MissReason | None
    task: Task | None
    engine: str | None
    fallback_model: str | None
    adjusted_fields: tuple[str, ...]
    media_type: str | None


class RequestKind(NamedTuple):
    """The facts of a request that has ended, on which its log line and metric labels depend.

    - `path`: the endpoint's.
    - `has_engine_request_id`: engines got another id than that of the request.
    - `has_generation`: it waited for a generation, its own or another request's.
    - `was_continued`: a second engine went on with the stream of that generation.
    - `had_choice`: the engine of that generation was chosen by estimates; see RoutedPrompt.
    - For the others, see Exchange.
    """

    response: ResponseKind
    tenant: str
    key_id: str | None
    path: str
    model: str | None
    outcome: RequestOutcome
    error_reason: str | None
    has_first_token: bool
    has_engine_request_id: bool
    has_generation: bool
    has_trace_id: bool
    was_continued: bool
    had_choice: bool


def response_kind(exchange: Exchange) -> ResponseKind:
    return ResponseKind(*response_facts(exchange))


def request_kind(exchange: Exchange) -> RequestKind:
    return RequestKind(response_kind(exchange), *request_facts(exchange)[1:])
