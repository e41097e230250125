"""Options that belong together, or that several commands have, as one argument."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints


def with_grouped_options(command: Callable[..., None]) -> Callable[..., None]:
    """As typer is to see a command: an argument whose type is a NamedTuple becomes an option for each of its fields."""
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hints[name] for name in signature.parameters if hasattr(hints[name], "_fields")}

    @functools.wraps(command)
    def with_groups(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field: values.pop(field) for field in group._fields})
        command(**values)

    parameters = list(_parameters(signature, hints, groups))
    with_groups.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect reads it
    with_groups.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return with_groups


def _parameters(
    signature: inspect.Signature, hints: dict[str, Any], groups: dict[str, Any]
) -> Iterator[inspect.Parameter]:
    # typer passes all by name, and in a signature, those without a default could not follow others otherwise.
    kind = inspect.Parameter.KEYWORD_ONLY
    for name, parameter in signature.parameters.items():
        if (group := groups.get(name)) is None:
            yield parameter.replace(annotation=hints[name], kind=kind)
            continue
        for field, hint in get_type_hints(group, include_extras=True).items():
            default = group._field_defaults.get(field, inspect.Parameter.empty)
            yield inspect.Parameter(field, kind, default=default, annotation=hint)
