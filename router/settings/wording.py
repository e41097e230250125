"""The messages for values that do not fit their type: the rule in words, and how to correct the value."""

from typing import Any, Final, get_args

import msgspec
from msgspec import inspect

SHOWN_IF: Final = "shown_if"
"""A key in the `extra` of a Meta; its value is a regular expression for the texts that a message may show."""


def rule(kind: Any, value: Any, raw: Any, error: msgspec.ValidationError, variable: str | None = None) -> str:
    """The message, which continues the value: "is none of open, keys, header".

    `kind`: the annotation; `raw`: the value as written in the file; `value`: after `${VAR}` was replaced; `error`:
    msgspec's; `variable`: the environment variable that the whole value is, and empty for a value that was not in the
    file.
    """
    info = inspect.type_info(kind)
    description = None
    if isinstance(info, inspect.Metadata):
        description = (info.extra_json_schema or {}).get("description")
        info = info.type
    match info:
        case inspect.StrType():
            return _text(info, value, description)
        case inspect.LiteralType():
            return f"is none of {', '.join(map(str, get_args(kind)))}"  # msgspec has another order
        case inspect.IntType():
            return f"is not an integer{_bounds(info)}{_remedy(value, raw, variable)}"
        case inspect.FloatType():
            return f"is not a number{_bounds(info)}{_remedy(value, raw, variable)}"
        case inspect.BoolType():
            return "is not true or false" + (" (without quotes)" if variable is None else _remedy(value, raw, variable))
    return str(error)  # a type of router.settings.units, whose message is complete


def shown_if(kind: Any) -> str | None:
    """The regular expression for a type's texts that a message may show; None: all may be shown."""
    info = inspect.type_info(kind)
    extra = info.extra if isinstance(info, inspect.Metadata) else None
    return extra.get(SHOWN_IF) if extra else None


def is_text(kind: Any) -> bool:
    info = inspect.type_info(kind)
    info = info.type if isinstance(info, inspect.Metadata) else info
    return isinstance(info, inspect.StrType | inspect.LiteralType)


def _text(kind: inspect.StrType, value: Any, description: str | None) -> str:
    if not isinstance(value, str):
        return "is not a string; write it in quotes"
    if len(value) < (kind.min_length or 0):
        return "must not be empty"
    if kind.max_length is not None and len(value) > kind.max_length:
        return f"has {len(value)} characters; the maximum is {kind.max_length}"
    return description or f"must match {kind.pattern}"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    match kind.ge, kind.gt, kind.le:
        case None, None, _:
            return ""
        case None, least, None:
            return f" greater than {least}"
        case None, least, most:
            return f" greater than {least} and at most {most}"
        case least, _, None:
            return f" of at least {least}"
        case least, _, most:
            return f" from {least} to {most}"


def _remedy(value: Any, raw: Any, variable: str | None) -> str:
    if not isinstance(value, str) or variable == "":
        return ""
    if variable is not None:
        return f"; set {variable} to one"
    return "; write numbers without quotes" if value == raw else "; write one ${VAR} without other text"
