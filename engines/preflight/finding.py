"""What a check finds."""

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "note"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem, and how to correct it.

    - `severity`: with an error, the engine does not start or fails requests; with a warning, it works worse than it
      could; a note is a fact that helps to judge the others.
    - `engine`: the engine's name; None if it is about the machine.
    - `setting`: what the problem is about: a setting, an environment variable or a part of the machine.
    - `problem`: what is wrong with it.
    - `remedy`: how to correct it, in one sentence; empty in a note that needs none.
    """

    severity: Severity
    engine: str | None
    setting: str
    problem: str
    remedy: str = ""


def error(engine: str | None, setting: str, problem: str, remedy: str) -> Finding:
    return Finding(severity="error", engine=engine, setting=setting, problem=problem, remedy=remedy)


def warning(engine: str | None, setting: str, problem: str, remedy: str) -> Finding:
    return Finding(severity="warning", engine=engine, setting=setting, problem=problem, remedy=remedy)


def note(engine: str | None, setting: str, problem: str, remedy: str = "") -> Finding:
    return Finding(severity="note", engine=engine, setting=setting, problem=problem, remedy=remedy)
