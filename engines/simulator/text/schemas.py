"""Sample JSON for a JSON schema, for tool calls and for `response_format`."""

import json
from collections.abc import Mapping
from random import Random

from engines.simulator.text import phrases

_MAX_DEPTH = 8  # ends recursive schemas


def sample_document(schema: object, seed: int) -> str:
    """JSON text that matches the common part of JSON Schema: types, enum, const, properties, items, anyOf."""
    rng = Random(seed)  # noqa: S311 - the document must be reproducible
    return json.dumps(_value(schema, rng, _MAX_DEPTH), ensure_ascii=False)


def _value(schema: object, rng: Random, depth: int) -> object:
    if not isinstance(schema, Mapping) or depth == 0:
        return {}
    if "const" in schema:
        return schema["const"]
    if isinstance(choices := schema.get("enum") or schema.get("anyOf") or schema.get("oneOf"), list) and choices:
        chosen = rng.choice(choices)
        return chosen if "enum" in schema else _value(chosen, rng, depth - 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    match kind:
        case "string":
            return f"{rng.choice(phrases.ADJECTIVES)} {rng.choice(phrases.NOUNS)}"
        case "integer":
            return rng.randrange(100)
        case "number":
            return rng.randrange(1000) / 10
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case "array":
            return [_value(schema.get("items"), rng, depth - 1) for _ in range(2)]
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): _value(inner, rng, depth - 1) for name, inner in properties.items()}
