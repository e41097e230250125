"""Which settings a reload changes: their names, and never a value, which may be a secret."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from router.settings import Settings


def changed_settings(old: Settings, new: Settings) -> list[str]:
    """`router.max_body`, `tenant.acme.models`, `engine.e1 (added)`, in the order of the tables."""
    return list(_changes("", old, new))


def _changes(path: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        for field in msgspec.structs.fields(old):
            name = f"{path}.{field.encode_name}" if path else field.encode_name
            yield from _changes(name, getattr(old, field.name), getattr(new, field.name))
    elif (tables := _named(old, new)) is not None:
        yield from _changes_of_tables(path, *tables)
    else:
        yield path


def _changes_of_tables(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    if old == new:
        yield f"{path} (order)"
    for name in dict.fromkeys((*old, *new)):
        if name not in old or name not in new:
            yield f"{path}.{name} ({'removed' if name in old else 'added'})"
        else:
            yield from _changes(f"{path}.{name}", old[name], new[name])


def _named(old: Any, new: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Two lists of tables by their names; None if they are something else."""
    if not all(isinstance(each, Sequence) and not isinstance(each, str) for each in (old, new)):
        return None
    if not all(isinstance(each, msgspec.Struct) and hasattr(each, "name") for each in (*old, *new)):
        return None
    return {each.name: each for each in old}, {each.name: each for each in new}
