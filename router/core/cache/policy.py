"""Decides whether a request is looked up, whether its response is stored, and whether a stored response is served."""

from enum import Enum
from typing import Final, Literal, NamedTuple

import msgspec

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl
from router.core.cache.remote_content import find_remote_content
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.requests.engine_fields import find_engine_field
from router.core.types import BypassReason

StorePolicy = Literal["all", "deterministic"]

CacheUse = Literal["on", "read", "off"]
"""`read`: requests are looked up, and nothing is stored. `off`: neither."""

RemoteContentPolicy = Literal["uncacheable", "stable"]
"""How to treat content that a request refers to by URL or id: it may change, or it never does."""


class Bypass(msgspec.Struct, frozen=True):
    """Why a request is not looked up. `explanation`: the same for people, as a sentence."""

    reason: BypassReason
    explanation: str


REDIS_DOWN: Final = Bypass(BypassReason.REDIS_DOWN, "Redis does not answer.")
SESSION_HAS_ALL: Final = Bypass(BypassReason.SESSION, "The session has had all kept samples.")
KEPT_AT_ENGINE: Final = Bypass(
    BypassReason.UNCACHEABLE, "An engine may have kept more of the conversation than the router knows."
)
_NO_STORE: Final = Bypass(BypassReason.NO_STORE, "The client sent `Cache-Control: no-store`.")
_NO_CACHE: Final = Bypass(BypassReason.NO_CACHE, "The client sent `Cache-Control: no-cache`.")
_NOT_DETERMINISTIC: Final = Bypass(
    BypassReason.POLICY, 'cache.store is "deterministic", and the request has neither temperature 0 nor a seed.'
)
_OFF: Final = Bypass(BypassReason.OFF, 'The model or the tenant has `cache = "off"`.')


class CacheDecision(NamedTuple):
    """`bypass`: why the request is not looked up; None if it is."""

    bypass: Bypass | None
    may_store: bool


_LOOKUP_AND_STORE: Final = CacheDecision(None, may_store=True)


def decide_caching(
    request: InferenceRequest,
    control: CacheControl,
    store_policy: StorePolicy,
    remote_policy: RemoteContentPolicy = "uncacheable",
    *,
    texts_only: bool = False,
) -> CacheDecision:
    """What the configuration and the client allow.

    The store policy `deterministic` excludes requests with neither temperature 0 nor a seed. `remote_policy`: see
    RemoteContentPolicy. `texts_only`: the request has no remote content, and names no memory of an engine; see
    RequestParts.
    """
    if control.no_store:
        return CacheDecision(_NO_STORE, may_store=False)
    # Skips the search for most requests: texts alone refer to nothing, except at endpoints with state.
    if request.endpoint.find_server_state is not None or not texts_only:
        bypass = _find_uncacheable(request, "stable" if texts_only else remote_policy)
        if bypass is not None:
            return CacheDecision(bypass, may_store=False)
    if store_policy == "deterministic" and not request.deterministic:
        return CacheDecision(_NOT_DETERMINISTIC, may_store=False)
    if control is NO_DIRECTIVES:  # most requests: no new object
        return _LOOKUP_AND_STORE
    return CacheDecision(_NO_CACHE if control.no_cache else None, may_store=control.ttl != 0)


def restrict(decision: CacheDecision, *uses: CacheUse) -> CacheDecision:
    """What is left of a decision where the strictest of `uses` applies."""
    if "off" in uses:
        return CacheDecision(_OFF, may_store=False)
    return CacheDecision(decision.bypass, decision.may_store and "read" not in uses)


def _find_uncacheable(request: InferenceRequest, remote_policy: RemoteContentPolicy) -> Bypass | None:
    explanation = _explain_uncacheable(request, remote_policy)
    return None if explanation is None else Bypass(BypassReason.UNCACHEABLE, explanation)


def _explain_uncacheable(request: InferenceRequest, remote_policy: RemoteContentPolicy) -> str | None:
    """Why the response depends on more than the request, so that it must not be reused; None if it does not."""
    if (field := find_engine_field(request.fields)) is not None:
        return f"`{field}` refers to the memory of one engine."
    find_server_state = request.endpoint.find_server_state
    if find_server_state is not None and (explanation := find_server_state(request.fields)) is not None:
        return explanation
    if remote_policy == "uncacheable" and (where := find_remote_content(request)) is not None:
        return f"`{where}` refers to remote content, which can change; see cache.remote_content."
    return None


class Freshness(Enum):
    """Whether a stored response of a given age may be served."""

    FRESH = "fresh"
    STALE = "stale"  # past its time to live, within the client's max-stale
    STALE_IF_ERROR = "if-error"  # only if no engine can generate a new one
    UNUSABLE = "none"


def evaluate_freshness(age: float, ttl: float, control: CacheControl, stale_if_error: float) -> Freshness:
    """Source: RFC 9111, sections 4.2 and 5.2.1; `stale_if_error` is the setting of the cache. All in seconds."""
    exceeds_max_age = control.max_age is not None and age > control.max_age
    staleness = age - ttl
    if staleness <= 0 and not exceeds_max_age:
        return Freshness.FRESH
    if control.max_stale is not None:
        # max-stale extends both limits, the time to live and the client's own max-age.
        excess = max(staleness, age - control.max_age if control.max_age is not None else staleness)
        if excess <= control.max_stale:
            return Freshness.STALE if staleness > 0 else Freshness.FRESH
    # A request with only-if-cached asks no engine, so none fails. An explicit max-age also holds if the engines fail.
    if control.only_if_cached:
        return Freshness.UNUSABLE
    return Freshness.STALE_IF_ERROR if not exceeds_max_age and staleness <= stale_if_error else Freshness.UNUSABLE
