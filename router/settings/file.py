"""Reads the configuration: a TOML file whose strings may contain `${VAR}` and `${VAR:-default}` (environment).

Variables such as ROUNDHOUSE_ROUTER_PORT, and options of a command, replace settings of the file.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from router.settings.key_file import with_admin_key
from router.settings.mistakes import ConfigurationError, Place
from router.settings.overrides import Override, overrides_of, with_overrides
from router.settings.profiles import with_profile
from router.settings.rules import broken
from router.settings.tables import Settings
from router.settings.toml_lines import find_lines, line_of
from router.settings.walk import Walk, fill_variables

_ACCESS: Final = ("router", "auth")
_TOML_LINE: Final = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")


def load(path: Path, environment: Mapping[str, str] | None = None, options: Iterable[Override] = ()) -> Settings:
    """Reads a configuration file. Raises ConfigurationError; each of its lines names the file and a place in it.

    `options` of a command count more than the environment, which counts more than the file. A mistake in one of them
    names it in place of the file.
    """
    return parse(_read_text(path), os.environ if environment is None else environment, options, source=str(path))


def load_access(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Where the router is, and what it asks for: [router] and [auth] alone. Raises ConfigurationError.

    For commands that ask a running router. Who may use it may lack the rest: the file of the admin key, and variables.
    """
    text, source = _read_text(path), str(path)
    environment = os.environ if environment is None else environment
    overrides, _ = overrides_of(environment)
    walk = Walk(environment, {override.place: override.origin for override in overrides})
    raw = with_overrides(_toml(text, source), overrides)
    settings: Settings = walk.read(Settings, {name: raw[name] for name in _ACCESS if name in raw})
    if walk.mistakes:
        raise ConfigurationError(*(_prefixed(source, mistake.line(walk.shown)) for mistake in walk.mistakes))
    return settings


def parse(text: str, environment: Mapping[str, str], options: Iterable[Override] = (), *, source: str = "") -> Settings:
    """Reads a configuration from its text. Raises ConfigurationError with all mistakes and their places.

    `source`: the file's name, which begins each mistake in the text, with the line: `roundhouse.toml:14: `.
    """
    overrides, unknown = overrides_of(environment)
    overrides += options
    origins: dict[Place, str] = {override.place: override.origin for override in overrides}
    walk = Walk(environment, origins)
    raw = _toml(text, source)
    settings: Settings = walk.read(Settings, with_overrides(_with_profiles(raw, environment), overrides))
    reported = {mistake.place for mistake in walk.mistakes}
    settings, unreadable = with_admin_key(settings)
    violations = [mistake for mistake in (*unreadable, *broken(settings)) if mistake.place not in reported]
    # A rule's result is dropped if it depends on a setting that could not be read: correcting that may satisfy it.
    mistakes = [*walk.mistakes, *(m for m in violations if not any(map(walk.is_unusable, (m.place, *m.reads))))]
    if mistakes or unknown:
        numbers = find_lines(text) if source else {}
        places = [
            origins.get(mistake.place) or _at_line(source, line_of(numbers, mistake.place)) for mistake in mistakes
        ]
        lines = (mistake.line(walk.shown) for mistake in mistakes)
        raise ConfigurationError(*unknown, *map(_prefixed, places, lines))
    return settings


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None


def _at_line(source: str, number: int | None) -> str:
    return f"{source}:{number}" if source and number is not None else source


def _prefixed(place: str, line: str) -> str:
    return f"{place}: {line}" if place else line


def _with_profiles(raw: dict[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    engines = raw.get("engine")
    if not isinstance(engines, list):
        return raw
    return {**raw, "engine": [_with_profile(engine, environment) for engine in engines]}


def _with_profile(engine: Any, environment: Mapping[str, str]) -> Any:
    if not (isinstance(engine, dict) and isinstance(engine.get("profile"), str)):
        return engine
    name, _ = fill_variables(engine["profile"], environment)
    return with_profile(engine, name)


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))  # some editors write a byte order mark
    except RecursionError:
        problem, number = "lists or tables are nested too deeply", None
    except ValueError as error:  # TOMLDecodeError, or an integer with thousands of digits
        problem = str(error)
        found = _TOML_LINE.search(problem)
        number = int(found[1]) if found is not None else None
    raise ConfigurationError(_prefixed(_at_line(source, number), f"not valid TOML: {problem}"))
