"""Types of request fields, as lenient as vLLM's pydantic models and with their messages."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from engines.simulator.rejections import Rejection, validation_error

Body = dict[str, Any]
Problem = dict[str, object]

_TRUE = {"true", "t", "yes", "y", "on", "1"}
_FALSE = {"false", "f", "no", "n", "off", "0"}


def parse_body(raw: bytes) -> Body:
    """The JSON object of a request body.

    Raises Rejection with FastAPI's message if there is none.
    """
    if not raw:
        raise validation_error(_problem("missing", "body", "Field required", None))
    try:
        body = json.loads(raw)
    except json.JSONDecodeError as error:
        problem = _problem("json_invalid", f"body.{error.pos}", "JSON decode error", {})
        raise validation_error({**problem, "ctx": {"error": error.msg}}) from error
    except UnicodeDecodeError as error:
        raise validation_error(_problem("json_invalid", f"body.{error.start}", "JSON decode error", {})) from error
    if not isinstance(body, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise validation_error(_problem("model_attributes_type", "body", message, body))
    return body


def coerce(body: Body, types: Mapping[str, str], required: tuple[str, ...] = ()) -> Body:
    """The body with the fields of `types` converted as pydantic does; null stays, unknown fields pass.

    Raises Rejection that names every field of a wrong type, in the order of `types`.
    """
    problems: list[Problem] = []
    result = dict(body)
    for name, kind in types.items():
        value = body.get(name)
        if name in required and name not in body:
            problems.append(_problem("missing", f"body.{name}", "Field required", body))
        elif value is not None or (name in required):
            converted, field_problems = _CONVERTERS[kind](value)
            problems += [
                _problem(fault, f"body.{name}{where}", message, at) for fault, where, message, at in field_problems
            ]
            result[name] = converted
    if problems:
        raise validation_error(*problems)
    return result


def missing_fields(body: Body, *names: str) -> Rejection:
    """vLLM's error for a body without these fields."""
    return validation_error(*(_problem("missing", f"body.{name}", "Field required", body) for name in names))


def _problem(fault: str, where: str, message: str, value: object) -> Problem:
    return {"type": fault, "loc": where, "msg": message, "input": value}


# type, path below the field, message, input
_Problems = list[tuple[str, str, str, object]]
_Converted = tuple[object, _Problems]


def _number(value: object) -> _Converted:
    if isinstance(value, int | float):
        return float(value), []
    if isinstance(value, str):
        try:
            return float(value), []
        except ValueError:
            message = "Input should be a valid number, unable to parse string as a number"
            return None, [("float_parsing", "", message, value)]
    return None, [("float_type", "", "Input should be a valid number", value)]


def _integer(value: object) -> _Converted:
    # bool is an int: pydantic's lax mode takes true as 1.
    if isinstance(value, int):
        return int(value), []
    if isinstance(value, float):
        if value.is_integer():
            return int(value), []
        message = "Input should be a valid integer, got a number with a fractional part"
        return None, [("int_from_float", "", message, value)]
    if isinstance(value, str):
        try:
            return int(value), []
        except ValueError:
            message = "Input should be a valid integer, unable to parse string as an integer"
            return None, [("int_parsing", "", message, value)]
    return None, [("int_type", "", "Input should be a valid integer", value)]


def _boolean(value: object) -> _Converted:
    if isinstance(value, bool):
        return value, []
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value), []
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE, []
    if isinstance(value, str | int | float):
        return None, [("bool_parsing", "", "Input should be a valid boolean, unable to interpret input", value)]
    return None, [("bool_type", "", "Input should be a valid boolean", value)]


def _text(value: object) -> _Converted:
    return (
        (value, [])
        if isinstance(value, str)
        else (None, [("string_type", "", "Input should be a valid string", value)])
    )


def _object(value: object) -> _Converted:
    if isinstance(value, dict):
        return value, []
    return None, [("dict_type", "", "Input should be a valid dictionary", value)]


def _objects(value: object) -> _Converted:
    if not isinstance(value, list):
        return None, [("list_type", "", "Input should be a valid list", value)]
    return value, [
        ("dict_type", f".{at}", "Input should be a valid dictionary", item)
        for at, item in enumerate(value)
        if not isinstance(item, dict)
    ]


def _messages(value: object) -> _Converted:
    value, problems = _objects(value)
    if not problems and isinstance(value, list):
        problems = [
            ("missing", f".{at}.role", "Field required", message)
            for at, message in enumerate(value)
            if "role" not in message
        ]
    return value, problems


def _tools_with_a_schema(value: object) -> _Converted:
    value, problems = _objects(value)
    if not problems and isinstance(value, list):
        problems = [
            ("missing", f".{at}.{name}", "Field required", tool)
            for at, tool in enumerate(value)
            for name in ("name", "input_schema")
            if name not in tool
        ]
    return value, problems


def _stop(value: object) -> _Converted:
    if isinstance(value, str):
        return [value], []
    if isinstance(value, list):
        return value, list(_not_text(value))
    return None, [
        ("string_type", "", "Input should be a valid string", value),
        ("list_type", "", "Input should be a valid list", value),
    ]


def _not_text(values: list[object]) -> Iterator[tuple[str, str, str, object]]:
    for at, item in enumerate(values):
        if not isinstance(item, str):
            yield "string_type", f".{at}", "Input should be a valid string", item


def _text_or_objects(value: object) -> _Converted:
    if isinstance(value, str):
        return value, []
    return _objects(value)


def _prompt(value: object) -> _Converted:
    """A text, token ids, or a list of either; vLLM reports a problem for every form that does not match."""
    if isinstance(value, str):
        return value, []
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return value, []
        if all(isinstance(item, str) for item in value):
            return value, []
        if all(isinstance(item, list) and all(isinstance(number, int) for number in item) for item in value):
            return value, []
        return None, list(_not_text(value))
    return None, [
        ("list_type", "", "Input should be a valid list", value),
        ("string_type", "", "Input should be a valid string", value),
    ]


_CONVERTERS: Mapping[str, Callable[[object], _Converted]] = {
    "number": _number,
    "integer": _integer,
    "boolean": _boolean,
    "text": _text,
    "object": _object,
    "objects": _objects,
    "messages": _messages,
    "tools with a schema": _tools_with_a_schema,
    "stop": _stop,
    "prompt": _prompt,
    "text or objects": _text_or_objects,
}
