"""What is said of a value that is none of its type: the rule in words, and the remedy."""

from typing import Any, Final, get_args

import msgspec
from msgspec import inspect

SHOWN_IF: Final = "shown_if"
"""In the `extra` of a Meta: the form (a regular expression) of the texts that a message may show."""


def rule(kind: Any, value: Any, raw: Any, error: msgspec.ValidationError) -> str:
    """Continues the value: "is none of open, keys, header".

    `kind` is the annotation, `value` what is none of it and `raw` how it stands in the file; `error` is msgspec's.
    """
    found = inspect.type_info(kind)
    description = None
    if isinstance(found, inspect.Metadata):
        description = (found.extra_json_schema or {}).get("description")
        found = found.type
    match found:
        case inspect.StrType():
            return _text(found, value, description)
        case inspect.LiteralType():
            return f"is none of {', '.join(map(str, get_args(kind)))}"  # msgspec's own are in another order
        case inspect.IntType():
            return f"is no whole number{_bounds(found)}{_unquote(value, raw)}"
        case inspect.FloatType():
            return f"is no number{_bounds(found)}{_unquote(value, raw)}"
        case inspect.BoolType():
            return "is neither true nor false, which stand without quotes"
    return str(error)  # a type of router.units, which has said so itself


def shown_if(kind: Any) -> str | None:
    """The form of the texts of a type that a message may show; None for all of them."""
    found = inspect.type_info(kind)
    extra = found.extra if isinstance(found, inspect.Metadata) else None
    return extra.get(SHOWN_IF) if extra else None


def is_text(kind: Any) -> bool:
    """Whether the values of a type are texts."""
    found = inspect.type_info(kind)
    found = found.type if isinstance(found, inspect.Metadata) else found
    return isinstance(found, inspect.StrType | inspect.LiteralType)


def _text(kind: inspect.StrType, value: Any, description: str | None) -> str:
    if not isinstance(value, str):
        return "is no text; write it in quotes"
    if len(value) < (kind.min_length or 0):
        return "must not be empty"
    if kind.max_length is not None and len(value) > kind.max_length:
        return f"has {len(value)} characters and may have no more than {kind.max_length}"
    return description or f"must have the form {kind.pattern}"


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    match kind.ge, kind.gt, kind.le:
        case None, None, _:
            return ""
        case None, least, None:
            return f" of more than {least}"
        case None, least, most:
            return f" of more than {least} and at most {most}"
        case least, _, None:
            return f" of at least {least}"
        case least, _, most:
            return f" from {least} to {most}"


def _unquote(value: Any, raw: Any) -> str:
    if not isinstance(value, str):
        return ""
    return "; numbers stand without quotes" if value == raw else "; a number cannot come from the environment"
