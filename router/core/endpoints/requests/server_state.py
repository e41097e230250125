"""Finds what in a request refers to state at a server, so that the response depends on more than the request."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

# Any other type, such as `mcp` or `web_search`, runs on the server: its results can change, and it can have effects.
CLIENT_TOOL_TYPES: Final = (None, "function", "custom", "namespace")
"""The types of tools that the client runs itself."""


def find_server_state(state_fields: tuple[str, ...], fields: Mapping[str, Any]) -> str | None:
    """Why a request with these fields refers to state at a server, or creates it; None if it does neither.

    `state_fields`: the fields of the endpoint that do so.
    """
    for name in state_fields:
        if fields.get(name):
            return f"`{name}` refers to server-side state, or creates it."
    for tool in fields.get("tools") or ():
        if (kind := tool.get("type")) not in CLIENT_TOOL_TYPES:
            return f"`tools` has a tool of type `{str(kind)[:64]}`, which is not run by the client."
    items = fields.get("input")
    if isinstance(items, list) and any(map(_is_item_reference, items)):
        return "`input` has a reference to an item in server-side state."
    return None


def _is_item_reference(item: dict[str, Any]) -> bool:
    """Whether an item of /v1/responses refers to a stored item: by its type, or by having nothing but an id."""
    return item.get("type") == "item_reference" or item.keys() == {"id"}


find_messages_state: Final = partial(find_server_state, ("mcp_servers", "container"))
"""That of Anthropic's API."""
