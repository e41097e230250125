"""Findings as text for people and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from engines.preflight.finding import Finding, Severity
from router.core.plural import pluralize
from router.core.printable import escape_unprintable

_LABELS: Final[dict[Severity, str]] = {"error": "FAIL", "warning": "warn", "note": "note"}


def has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.severity == "error" for finding in findings)


def report_lines(findings: Sequence[Finding], engine_count: int) -> Iterator[str]:
    """A line for each finding, one below it with the remedy, and a summary at the end."""
    for finding in findings:
        engine = "" if finding.engine is None else f"engine {finding.engine}: "
        yield _printable(f"{_LABELS[finding.severity]}  {engine}{finding.setting}: {finding.problem}")
        if finding.remedy:
            yield _printable(f"      {finding.remedy}")
    errors, warnings = (sum(f.severity == severity for f in findings) for severity in ("error", "warning"))
    found = f"{pluralize(errors, 'error')}, {pluralize(warnings, 'warning')}"
    yield f"{pluralize(engine_count, 'engine')} to start: {found}"


def report_json(findings: Sequence[Finding]) -> bytes:
    report: dict[str, Any] = {"ok": not has_errors(findings), "findings": findings}
    return msgspec.json.encode(report)


def _printable(text: str) -> str:
    """Commands of processes and names of files may contain any character, and a terminal would act on some."""
    return escape_unprintable(text)
