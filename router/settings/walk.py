"""Converts TOML's values to structs, with a walk over their types that continues after a mistake.

msgspec reports only the first mistake, so it converts each value alone. A value that cannot be used is replaced by the
default or a placeholder, so the structs are valid only if there are no mistakes. A text that breaks its type's rule is
kept, so that references to it are not reported too.
"""

import re
from collections.abc import Container, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from router.settings.mistakes import Mistake, Place, hint, overlap, show
from router.settings.units import parse_quantity
from router.settings.wording import is_text, rule, shown_if

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Walk:
    """Reads tables as structs.

    - `mistakes` has all mistakes in the order of the file; what a table lacks comes at the table's end.
    - `shown` has the values that may be shown, as written in the file: an environment variable by its name.
    - A text at one of the places `overridden` is used as it is, and converted to a number or a boolean where one is
      needed. So is a text in the file that is one `${VAR}` and nothing else.
    """

    def __init__(self, environment: Mapping[str, str], overridden: Container[Place] = frozenset()) -> None:
        self.mistakes: list[Mistake] = []
        self.shown: dict[Place, str] = {}
        self._environment = environment
        self._overridden = overridden
        self._unusable: list[Place] = []

    def is_unusable(self, place: Place) -> bool:
        """Whether the place, something in it, or something that contains it could not be read."""
        return any(overlap(place, unusable) for unusable in self._unusable)

    def read(self, kind: Any, raw: Any, place: Place = ()) -> Any:
        """The value at a place, converted to the type `kind`; UNSET if it cannot be used."""
        if get_origin(kind) in (Union, UnionType):  # X | None; TOML has no null
            kind = next(inner for inner in get_args(kind) if inner is not NoneType)
        if get_origin(kind) is list:
            return self._list(get_args(kind)[0], raw, place)
        if get_origin(kind) is dict:
            return self._names(get_args(kind)[1], raw, place)
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._table(kind, raw, place)
        return self._value(kind, raw, place)

    def _table(self, kind: type[msgspec.Struct], raw: Any, place: Place) -> msgspec.Struct:
        fields = _fields(kind)
        if not isinstance(raw, dict):
            self._refuse(place, f"is not a table; write {_heading(place)} on its own line and its settings below")
            raw = {}
        values = {}
        for name, item in raw.items():
            if name not in fields:
                self._unknown((*place, name), list(fields))
            elif (value := self.read(fields[name].type, item, (*place, name))) is not msgspec.UNSET:
                values[name] = value
        for name, field in fields.items():
            if field.required and name not in values:
                if not self.is_unusable((*place, name)):
                    self._refuse((*place, name), f'is missing; write {name} = "…" below {_heading(place)}')
                values[name] = ""  # a placeholder, without which the struct could not be made
        return kind(**values)

    def _list(self, kind: Any, raw: Any, place: Place) -> Any:
        if not isinstance(raw, list):
            tables = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            remedy = f"write {_heading((*place, 0))}" if tables else "write [ and ] around it"
            return self._refuse(place, f"is not a list; {remedy}")
        items = [self.read(kind, item, (*place, index)) for index, item in enumerate(raw)]
        return ["" if item is msgspec.UNSET else item for item in items]  # so that the other items keep their indices

    def _names(self, kind: Any, raw: Any, place: Place) -> Any:
        if not isinstance(raw, dict):
            return self._refuse(place, f'is not a table; write {place[-1]} = {{ NAME = "value" }}')
        items = {name: self.read(kind, item, (*place, name)) for name, item in raw.items()}
        return {name: item for name, item in items.items() if item is not msgspec.UNSET}

    def _value(self, kind: Any, raw: Any, place: Place) -> Any:
        overridden = place in self._overridden
        value = self._fill(raw, place) if isinstance(raw, str) and not overridden else raw
        if value is msgspec.UNSET:
            return value
        if isinstance(value, str) and not _is_utf8(value):
            return self._refuse(place, "is not UTF-8 text")
        variable = _VARIABLE.fullmatch(raw) if isinstance(raw, str) and not overridden else None
        if not overridden:
            self._note(kind, raw, place)
        try:
            strict = variable is None and not overridden
            return msgspec.convert(value, kind, strict=strict, dec_hook=parse_quantity)
        except msgspec.ValidationError as error:
            message = rule(kind, value, raw, error, variable[1] if variable is not None else "" if overridden else None)
        if not (isinstance(value, str) and is_text(kind)):
            return self._refuse(place, message)
        self.mistakes.append(Mistake(place, message))
        return value

    def _fill(self, text: str, place: Place) -> Any:
        filled, missing = fill_variables(text, self._environment)
        for name in missing:
            message = f"environment variable {name} is not set; set it, or write ${{{name}:-…}} with a default"
            self._refuse(place, message, of_value=False)
        return msgspec.UNSET if missing else filled

    def _note(self, kind: Any, raw: Any, place: Place) -> None:
        # The value as written, before `${VAR}` is replaced: the environment often holds secrets.
        form = shown_if(kind)
        if form is not None and not (isinstance(raw, str) and re.fullmatch(form, raw)):
            return
        if (shown := show(raw)) is not None:
            self.shown[place] = shown

    def _unknown(self, place: Place, known: list[str]) -> None:
        similar = hint(str(place[-1]).replace("-", "_"), known)
        remedy = f"did you mean {similar}?" if similar else f"known settings: {', '.join(known)}"
        self.mistakes.append(Mistake(place, f"no such setting; {remedy}", of_value=False))
        if similar:  # the file sets it under a wrong name, so its default is not what is wanted
            self._unusable.append((*place[:-1], similar))

    def _refuse(self, place: Place, message: str, *, of_value: bool = True) -> Any:
        self.mistakes.append(Mistake(place, message, of_value))
        self._unusable.append(place)
        return msgspec.UNSET


def fill_variables(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with `${VAR}` and `${VAR:-default}` replaced, and the names of variables that are not set."""
    missing = []

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        # As in a shell, `:-` applies to a variable that is empty, too.
        value = environment.get(name) or (environment.get(name) if default is None else default)
        if value is None:
            missing.append(name)
        return value or ""

    filled = _VARIABLE.sub(replace, text)
    return filled, list(dict.fromkeys(missing))


def _is_utf8(text: str) -> bool:
    """The bytes of an environment variable that are none are surrogates in its text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _heading(place: Place) -> str:
    name = ".".join(part for part in place if isinstance(part, str))
    return f"[[{name}]]" if isinstance(place[-1], int) else f"[{name}]"


@cache
def _fields(kind: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """By name. msgspec evaluates the annotations each time."""
    return {field.name: field for field in msgspec.structs.fields(kind)}
