"""May this request be looked up, may its answer be stored, and may a stored answer be given?"""

from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl
from router.core.cache.remote_content import find_remote_content
from router.core.endpoints.request import InferenceRequest
from router.core.types import BypassReason, Endpoint

StorePolicy = Literal["all", "deterministic"]

RemoteContentPolicy = Literal["uncacheable", "stable"]
"""What content is taken for that a request refers to by an address or an id."""

_CLIENT_TOOL_TYPES: Final = (None, "function", "custom", "namespace")
"""The types of tools that the client runs itself; any other, such as `mcp` or `web_search`, somebody else runs."""

_STATE_FIELDS: Final = {
    Endpoint.RESPONSES: ("previous_response_id", "conversation", "background", "prompt"),
    Endpoint.MESSAGES: ("mcp_servers", "container"),
}
"""The fields by which a request refers to what is kept elsewhere, or has something kept there."""


class CacheDecision(NamedTuple):
    """`bypass`: why the request is not looked up, or None where it is. `keep`: whether its answer may be stored."""

    bypass: BypassReason | None
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

    `deterministic` leaves out what may be answered otherwise the next time: anything without temperature 0 or a seed.
    `remote`: whether content that the request only refers to may change. `texts_only`: it refers to none; see Parts.
    """
    if control.no_store:
        return CacheDecision(BypassReason.NO_STORE, may_store=False)
    looks = request.endpoint in _STATE_FIELDS or not texts_only  # most requests need no look
    if looks and uncacheable_reason(request, "stable" if texts_only else remote_policy) is not None:
        return CacheDecision(BypassReason.UNCACHEABLE, may_store=False)
    if store_policy == "deterministic" and not request.deterministic:
        return CacheDecision(BypassReason.POLICY, may_store=False)
    if control is NO_DIRECTIVES:
        return _LOOKUP_AND_STORE
    return CacheDecision(BypassReason.NO_CACHE if control.no_cache else None, may_store=control.ttl != 0)


def uncacheable_reason(request: InferenceRequest, remote_policy: RemoteContentPolicy) -> str | None:
    """Why the answer depends on more than the request, so that it answers no other, however equal; or None."""
    if request.endpoint in _STATE_FIELDS:
        fields = request.fields
        for name in _STATE_FIELDS[request.endpoint]:
            if fields.get(name):
                return f"`{name}` refers to what is kept elsewhere, or has something kept there."
        for tool in fields.get("tools") or ():
            if (kind := tool.get("type")) not in _CLIENT_TOOL_TYPES:
                return f"`tools` has one of the type `{str(kind)[:64]}`, which is run by somebody else than the client."
        items = fields.get("input")
        if isinstance(items, list) and any(map(_is_item_reference, items)):
            return "`input` has an item that stands for one that is kept elsewhere."
    if remote_policy == "uncacheable" and (where := find_remote_content(request)) is not None:
        return f"`{where}` refers to content elsewhere, which can change; see cache.remote_content."
    return None


def _is_item_reference(item: dict[str, Any]) -> bool:
    """Whether an item of /v1/responses stands for one that is kept elsewhere; without a type, an id alone does."""
    return item.get("type") == "item_reference" or item.keys() == {"id"}


class Freshness(Enum):
    """What a stored answer is good for, by its age."""

    FRESH = "fresh"
    STALE = "stale"  # the client takes it although it has outlived its time
    STALE_IF_ERROR = "if-error"  # if no engine can give a new one
    UNUSABLE = "none"


def evaluate_freshness(age: float, ttl: float, control: CacheControl, stale_if_error: float) -> Freshness:
    """All in seconds. A client that wants no more than a certain age gets no older answer even then."""
    too_old = control.max_age is not None and age > control.max_age
    over = age - ttl
    if over <= 0 and not too_old:
        return Freshness.FRESH
    if control.max_stale is not None:
        beyond = max(over, age - control.max_age if control.max_age is not None else over)
        if beyond <= control.max_stale:
            return Freshness.STALE if over > 0 else Freshness.FRESH
    return Freshness.STALE_IF_ERROR if not too_old and over <= stale_if_error else Freshness.UNUSABLE
