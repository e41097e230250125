"""What `roundhouse check` says of one thing that it looked at."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

Level = Literal["ok", "warning", "error"]


class Problem(NamedTuple):
    """What is wrong, and what to do about it; both continue "it ..." and are for people."""

    note: str
    fix: str


class Finding(msgspec.Struct, frozen=True):
    """`what` was looked at, and a `note` on it. `setting`: its place in the file; `fix`: what to do.

    An error is what requests will meet; a warning is what an operator should know. Only errors fail the command.
    """

    what: str
    note: str
    level: Level = "ok"
    setting: str | None = None
    fix: str | None = None

    @property
    def ok(self) -> bool:
        return self.level != "error"

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what, "ok": self.ok, "level": self.level, "note": self.note, "setting": self.setting,
            "fix": self.fix,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """For a terminal."""
        label = {"ok": "ok   ", "warning": "warn ", "error": "FAIL "}[self.level]
        first = f"{label} {self.what}: {self.note}"
        if self.fix is None:
            return [first]
        return [first, f"      {self.setting}: {self.fix}" if self.setting is not None else f"      {self.fix}"]


def report_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """What `roundhouse check --json` prints."""
    return {"ok": all(finding.ok for finding in findings), "findings": [finding.as_json() for finding in findings]}


def wrong(what: str, setting: str | None, problem: Problem, level: Level = "error") -> Finding:
    return Finding(what, problem.note, level, setting, problem.fix)
