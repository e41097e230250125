"""Reads the configuration: a TOML file whose strings may contain `${VAR}` and `${VAR:-default}` (environment)."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router.settings.mistakes import ConfigurationError
from router.settings.profiles import with_profile
from router.settings.rules import broken
from router.settings.tables import Settings
from router.settings.walk import Walk, fill_variables


def load(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads a configuration file. Raises ConfigurationError; each of its lines names the file and a place in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    try:
        return parse(text, os.environ if environment is None else environment)
    except ConfigurationError as error:
        raise ConfigurationError(*(f"{path}: {mistake}" for mistake in error.mistakes)) from None


def parse(text: str, environment: Mapping[str, str]) -> Settings:
    """Reads a configuration from its text. Raises ConfigurationError with all mistakes and their places."""
    walk = Walk(environment)
    raw = _toml(text.removeprefix("\ufeff"))  # some editors write a byte order mark
    settings: Settings = walk.read(Settings, _with_profiles(raw, environment))
    reported = {mistake.place for mistake in walk.mistakes}
    violations = [mistake for mistake in broken(settings) if mistake.place not in reported]
    # A rule's result is dropped if it depends on a setting that could not be read: correcting that may satisfy it.
    mistakes = [*walk.mistakes, *(m for m in violations if not any(map(walk.is_unusable, (m.place, *m.reads))))]
    if mistakes:
        raise ConfigurationError(*(mistake.line(walk.shown) for mistake in mistakes))
    return settings


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


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ConfigurationError("not valid TOML: lists or tables are nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, or an integer with thousands of digits
        raise ConfigurationError(f"not valid TOML: {error}") from None
