"""Settings from outside of the file: environment variables such as ROUNDHOUSE_ROUTER_PORT, and options of a command.

An option counts more than a variable, a variable more than the file. Only the tables that exist once have variables,
and of their settings those with one value.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from router.settings.mistakes import Place, hint
from router.settings.tables import Settings

PREFIX: Final = "ROUNDHOUSE_"

_OF_A_SERVICE: Final = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://.*")
"""Kubernetes sets such variables for each Service. One with the name roundhouse-router would set a port otherwise."""


class Override(msgspec.Struct, frozen=True):
    """A value for a setting: `origin` is what a person has set, a variable or an option. The value may be a secret."""

    place: Place
    value: str
    origin: str


def overrides_of(environment: Mapping[str, str]) -> tuple[list[Override], list[str]]:
    """The settings in the environment, and a message for each variable that looks like a setting but is none.

    An empty variable counts as unset, as in the file.
    """
    tables = _tables()
    overrides, unknown = [], []
    for variable, value in sorted(environment.items()):
        table = next((name for name in tables if variable.startswith(f"{PREFIX}{name.upper()}_")), None)
        if table is None or not value or _is_of_a_service(variable, value):
            continue
        setting = variable.removeprefix(f"{PREFIX}{table.upper()}_").lower()
        if setting in tables[table]:
            overrides.append(Override((table, setting), value, variable))
        else:
            unknown.append(_unknown(variable, table, setting, tables[table]))
    return overrides, unknown


def with_overrides(raw: Mapping[str, Any], overrides: Iterable[Override]) -> dict[str, Any]:
    """The tables of a file with these values in place of its own."""
    merged = dict(raw)
    for override in overrides:
        table, setting = override.place
        old = merged.get(str(table), {})
        if isinstance(old, dict):  # anything else is a mistake, which is reported as it stands in the file
            merged[str(table)] = {**old, setting: override.value}
    return merged


@cache
def _tables() -> Mapping[str, list[str]]:
    """The names of the settings that a variable can set, by table."""
    tables = ((field.name, field.type) for field in msgspec.structs.fields(Settings))
    return {
        name: [field.name for field in msgspec.structs.fields(kind) if _has_one_value(field.type)]
        for name, kind in tables
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    }


def _has_one_value(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return all(_has_one_value(inner) for inner in get_args(kind) if inner is not NoneType)
    return get_origin(kind) not in (list, dict) and not (isinstance(kind, type) and issubclass(kind, msgspec.Struct))


def _is_of_a_service(variable: str, value: str) -> bool:
    return _OF_A_SERVICE.fullmatch(variable) is not None or (
        variable.endswith("_PORT") and _SERVICE_URL.fullmatch(value) is not None
    )


def _unknown(variable: str, table: str, setting: str, known: list[str]) -> str:
    tables = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    if setting in {field.name for field in msgspec.structs.fields(tables[table])}:
        return f"{variable}: {table}.{setting} has several values; set it in the file"
    similar = hint(setting, known)
    remedy = f"did you mean {PREFIX}{table.upper()}_{similar.upper()}?" if similar else f"known: {', '.join(known)}"
    return f"{variable}: no such setting; {remedy}"
