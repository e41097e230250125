"""Keeps the order of properties in the JSON schemas of a request, because it is part of the key.

Guided decoding writes the properties of an object in the order of its schema, and a chat template copies the schema of
a tool unchanged. So two requests whose schemas differ only in order may get different answers. In the rest of a request
the order of names does not matter.
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
"""Request fields that contain schemas, and the names of the members that hold them."""

SCHEMA_FIELDS: Final = frozenset((*SCHEMA_NAMES_BY_FIELD, "guided_json"))
"""All request fields with schemas; `guided_json` is a schema itself."""


def preserve_property_order(field: str, value: Any) -> Any:
    """The value of a field of SCHEMA_FIELDS, with each schema replaced by its JSON (msgspec.Raw).

    The canonical encoder sorts names, but copies Raw unchanged.
    """
    if field == "guided_json":
        return _raw_json(value)
    return _preserve_schemas(value, SCHEMA_NAMES_BY_FIELD[field])


def _preserve_schemas(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, list):
        return [_preserve_schemas(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    replaced = {}
    for name, item in value.items():
        # `json_schema` is itself the schema in a structural tag, but wraps {"schema": ...} in a response format.
        is_schema = name in names or (name == "json_schema" and isinstance(item, dict) and "schema" not in item)
        replaced[name] = _raw_json(item) if is_schema else _preserve_schemas(item, names)
    return replaced


def _raw_json(value: Any) -> Any:
    return msgspec.Raw(_encode(value)) if isinstance(value, dict | list) else value
