"""The order of properties within the JSON schemas of a request, which is part of the key.

Guided decoding writes an object's properties in the order in which its schema has them, and a chat template writes a
tool's schema as it stands. So two requests whose schemas differ in their order alone may have two answers. In the rest
of a request the order of names does not matter.
"""

from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode

_FORMAT: Final = frozenset(("schema",))
_TOOL: Final = frozenset(("parameters", "input_schema", "schema"))

FIELDS: Final[dict[str, frozenset[str]]] = {
    "response_format": _FORMAT,
    "text": _FORMAT,  # /v1/responses: `text.format.schema`
    "output_format": _FORMAT,  # /v1/messages
    "output_config": _FORMAT,
    "structured_outputs": frozenset(("json",)),
    "tools": _TOOL,
    "functions": _TOOL,
}
"""The fields that hold schemas, and under which names they hold them."""

NAMES: Final = frozenset((*FIELDS, "guided_json"))
"""All fields of a request that hold schemas; `guided_json` is one itself."""


def ordered(field: str, value: Any) -> Any:
    """The value of one of these fields, with each schema in it as JSON in its own order.

    The canonical form sorts names, but takes such a piece of JSON as it stands.
    """
    if field == "guided_json":
        return _as_it_stands(value)
    return _with_schemas(value, FIELDS[field])


def _with_schemas(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [_with_schemas(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        # A structural tag has its schema under this name; a response format has there what holds its schema.
        is_schema = name in names or (name == "json_schema" and isinstance(item, dict) and "schema" not in item)
        made[name] = _as_it_stands(item) if is_schema else _with_schemas(item, names)
    return made


def _as_it_stands(value: Any) -> Any:
    return msgspec.Raw(_encode(value)) if isinstance(value, dict | list) else value
