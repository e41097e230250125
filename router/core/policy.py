"""May this request be looked up, may its answer be stored, and may a stored answer be given?"""

from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from router.core.control import NO_WISHES, Control
from router.core.request import Request
from router.core.types import Bypass, Endpoint

Store = Literal["all", "deterministic"]

_CLIENTS_TOOLS: Final = (None, "function", "custom", "namespace")
"""The types of tools that the client runs itself; any other, such as `mcp` or `web_search`, somebody else runs."""

_STATE: Final = {
    Endpoint.RESPONSES: ("previous_response_id", "conversation", "background", "prompt"),
    Endpoint.MESSAGES: ("mcp_servers", "container"),
}
"""The fields by which a request refers to what is kept elsewhere, or has something kept there."""


class Decision(NamedTuple):
    """`bypass`: why the request is not looked up, or None where it is. `keep`: whether its answer may be stored."""

    bypass: Bypass | None
    keep: bool


_ALL: Final = Decision(None, keep=True)


def decide(request: Request, control: Control, store: Store) -> Decision:
    """What the configuration and the client allow.

    `deterministic` leaves out what may be answered otherwise the next time: anything without temperature 0 or a seed.
    """
    if control.no_store:
        return Decision(Bypass.NO_STORE, keep=False)
    if request.endpoint in _STATE and _depends_on_more(request):
        return Decision(Bypass.UNCACHEABLE, keep=False)
    if store == "deterministic" and not request.deterministic:
        return Decision(Bypass.POLICY, keep=False)
    if control is NO_WISHES:
        return _ALL
    return Decision(Bypass.NO_CACHE if control.no_cache else None, keep=control.ttl != 0)


def _depends_on_more(request: Request) -> bool:
    """Whether the answer depends on more than the request, so that it answers no other, however equal."""
    fields = request.fields
    if any(fields.get(name) for name in _STATE[request.endpoint]):
        return True
    if any(tool.get("type") not in _CLIENTS_TOOLS for tool in fields.get("tools") or ()):
        return True
    items = fields.get("input")
    return isinstance(items, list) and any(map(_is_reference, items))


def _is_reference(item: dict[str, Any]) -> bool:
    """Whether an item of /v1/responses stands for one that is kept elsewhere; without a type, an id alone does."""
    return item.get("type") == "item_reference" or item.keys() == {"id"}


class Use(Enum):
    """What a stored answer is good for, by its age."""

    FRESH = "fresh"
    STALE = "stale"  # the client takes it although it has outlived its time
    IF_ERROR = "if-error"  # if no engine can give a new one
    NONE = "none"


def usable(age: float, ttl: float, control: Control, stale_if_error: float) -> Use:
    """All in seconds. A client that wants no more than a certain age gets no older answer even then."""
    too_old = control.max_age is not None and age > control.max_age
    over = age - ttl
    if over <= 0 and not too_old:
        return Use.FRESH
    if control.max_stale is not None:
        beyond = max(over, age - control.max_age if control.max_age is not None else over)
        if beyond <= control.max_stale:
            return Use.STALE if over > 0 else Use.FRESH
    return Use.IF_ERROR if not too_old and over <= stale_if_error else Use.NONE
