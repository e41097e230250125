"""The order of properties within the JSON schemas of a request, which is part of the key.

Guided decoding writes an object's properties in the order in which its schema has them, and a chat template writes a
tool's schema as it stands. So two requests whose schemas differ in their order alone may have two answers. In the rest
of a request the order of names does not matter.
"""

from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder().encode

_FORMAT_SCHEMA_NAMES: Final = frozenset(("schema",))
_TOOL_SCHEMA_NAMES: Final = frozenset(("parameters", "input_schema", "schema"))

SCHEMA_NAMES_BY_FIELD: Final[dict[str, frozenset[str]]] = {
    "response_format": _FORMAT_SCHEMA_NAMES,
    "text": _FORMAT_SCHEMA_NAMES,  # /v1/responses: `text.format.schema`
    "output_format": _FORMAT_SCHEMA_NAMES,  # /v1/messages
    "output_config": _FORMAT_SCHEMA_NAMES,
    "structured_outputs": frozenset(("json",)),
    "tools": _TOOL_SCHEMA_NAMES,
    "functions": _TOOL_SCHEMA_NAMES,
}
"""The fields that hold schemas, and under which names they hold them."""

SCHEMA_FIELDS: Final = frozenset((*SCHEMA_NAMES_BY_FIELD, "guided_json"))
"""All fields of a request that hold schemas; `guided_json` is one itself."""


def preserve_property_order(field: str, value: Any) -> Any:
    """The value of one of these fields, with each schema in it as JSON in its own order.

    The canonical form sorts names, but takes such a piece of JSON as it stands.
    """
    if field == "guided_json":
        return _raw_json(value)
    return _preserve_schemas(value, SCHEMA_NAMES_BY_FIELD[field])


def _preserve_schemas(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [_preserve_schemas(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for name, item in value.items():
        # A structural tag has its schema under this name; a response format has there what holds its schema.
        is_schema = name in names or (name == "json_schema" and isinstance(item, dict) and "schema" not in item)
        made[name] = _raw_json(item) if is_schema else _preserve_schemas(item, names)
    return made


def _raw_json(value: Any) -> Any:
    return msgspec.Raw(_encode(value)) if isinstance(value, dict | list) else value
