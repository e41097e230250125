"""What a check finds, for people and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from router.core.plural import pluralize
from router.core.printable import escape_unprintable

Severity = Literal["error", "warning", "note"]

_LABELS: Final[dict[Severity, str]] = {"error": "FAIL", "warning": "warn", "note": "note"}


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


def has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def report_lines(findings: Sequence[Finding], engine_count: int) -> Iterator[str]:
    """A line for each finding, one below it with the remedy, and a summary at the end."""
    # Commands of processes and names of files may contain any character, and a terminal would act on some.
    for finding in findings:
        engine = "" if finding.engine is None else f"engine {finding.engine}: "
        yield escape_unprintable(f"{_LABELS[finding.severity]}  {engine}{finding.setting}: {finding.problem}")
        if finding.remedy:
            yield escape_unprintable(f"      {finding.remedy}")
    errors, warnings = (sum(f.severity == severity for f in findings) for severity in ("error", "warning"))
    found = f"{pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}"
    yield f"{pluralize(engine_count, 'engine')} to start: {found}"


def report_json(findings: Sequence[Finding]) -> bytes:
    report: dict[str, Any] = {"ok": not has_errors(findings), "findings": findings}
    return msgspec.json.encode(report)
