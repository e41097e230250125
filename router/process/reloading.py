"""Reads the configuration again while the router serves, and tells `roundhouse reload` what came of it."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from router.api.inference.prompt_log import prompt_log_warning
from router.settings import ConfigurationError, Override, ServerSettings, Settings, load, missing_extra

log = logging.getLogger("roundhouse.server")

_MAX_ACTOR: Final = 500  # bytes
_NO_FILE: Final = "there is no configuration file to reload; restart the router to ask its engines again"


OnApplied = Callable[[Settings, Settings, str | None], object]
"""Gets the settings before and after a reload, and who asked for it: None if that is not known."""


class ReloadOutcome(msgspec.Struct, frozen=True):
    """What came of a reload: `number` counts them; `lines` are the mistakes, or else what needs a restart."""

    number: int
    is_in_effect: bool
    lines: tuple[str, ...] = ()


class Reloader:
    """Reads the settings, which its owner puts into effect, and records the outcome of each reload in a file.

    `read` and `finish` are called by turns. A reload that `read` refuses is recorded at once.
    """

    def __init__(
        self,
        config_file: Path | None,
        overrides: Sequence[Override] = (),
        outcome_file: Path | None = None,
        on_applied: OnApplied = lambda *_: None,
    ) -> None:
        """`config_file`: None if there is none. `outcome_file`: None to record nothing."""
        self._on_applied = on_applied
        self._note_applied: Callable[[], object] = lambda: None  # to be called when what was read last is in effect
        self._config_file = config_file
        self._overrides = overrides
        self._outcome_file = outcome_file
        self._number = 0
        self._notes: list[str] = []

    def read(self, old: Settings) -> Settings | None:
        """The settings after a reload; None if the file cannot be used, which is logged.

        Settings that need a restart keep their values, which is also logged.
        """
        self._notes = []
        actor = take_actor(self._outcome_file)
        if self._config_file is None:
            log.warning("%s", _NO_FILE)
            self._record(False, [_NO_FILE])
            return None
        try:
            new = load(self._config_file, options=self._overrides)
        except ConfigurationError as error:
            self._refuse(error.mistakes)
            return None
        if (problem := missing_extra(new)) is not None:
            self._refuse([problem])
            return None
        if (warning := prompt_log_warning(new)) is not None:
            self._notes.append(warning)
        fixed = {name: getattr(old.router, name) for name in ServerSettings.__struct_fields__}
        changed = [name for name, value in fixed.items() if value != getattr(new.router, name)]
        self._notes += [f"router.{name}: a change needs a restart" for name in changed]
        for note in self._notes:
            log.warning("%s", note)
        settings = replace(new, router=replace(new.router, **fixed))
        self._note_applied = lambda: self._on_applied(old, settings, actor)
        return settings

    def finish(self, problem: str | None) -> None:
        """Records that the settings of `read` are in effect, or why they are not."""
        self._record(problem is None, self._notes if problem is None else [problem])
        if problem is None:
            self._note_applied()

    def _refuse(self, mistakes: Sequence[str]) -> None:
        for mistake in mistakes:  # a record each, since a record is a line
            log.error("the configuration is invalid; the previous one stays in effect: %s", mistake)
        self._record(False, mistakes)

    def _record(self, is_in_effect: bool, lines: Sequence[str]) -> None:
        self._number += 1
        if self._outcome_file is None:
            return
        outcome = {"number": self._number, "is_in_effect": is_in_effect, "lines": list(lines)}
        unfinished = self._outcome_file.with_suffix(".reload~")
        try:
            # No link that another user may have placed in the folder is followed.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with os.fdopen(os.open(unfinished, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(outcome, file)
            unfinished.replace(self._outcome_file)
        except OSError as error:
            log.warning("the outcome of the reload cannot be written: %s", error)


def actor_file(outcome_file: Path) -> Path:
    """Where `roundhouse reload` says who runs it, before it sends the signal, which says nothing."""
    return outcome_file.with_suffix(".reload-by")


def take_actor(outcome_file: Path | None) -> str | None:
    """Who asked for the reload, as the command said; None after a signal of somebody else."""
    if outcome_file is None:
        return None
    path = actor_file(outcome_file)
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            text = file.read(_MAX_ACTOR)
        path.unlink()
    except OSError:
        return None
    return text.decode("utf-8", "replace") or None


def read_outcome(outcome_file: Path) -> ReloadOutcome | None:
    """None if there was no reload yet, or the file is damaged. Raises OSError."""
    try:
        return msgspec.json.decode(outcome_file.read_bytes(), type=ReloadOutcome)
    except (FileNotFoundError, msgspec.DecodeError):
        return None
