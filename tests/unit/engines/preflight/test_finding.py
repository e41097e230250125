"""The report: text for people, JSON for machines, and the example in the documentation."""

import json
import re

from engines.preflight.checks import check_all
from engines.preflight.finding import Finding, error, has_errors, note, report_json, report_lines, warning
from tests.support.paths import ROOT
from tests.support.preflight_facts import broken_machine, make_engine, make_observations

FINDINGS = [
    error("llama", "url", "port 8001 is in use", "Stop it."),
    warning(None, "driver", "is old", "Update it."),
    note("llama", "GPU 0", "has room"),
]


def test_each_finding_has_its_remedy_below_it() -> None:
    assert list(report_lines(FINDINGS, 1)) == [
        "FAIL  engine llama: url: port 8001 is in use",
        "      Stop it.",
        "warn  driver: is old",
        "      Update it.",
        "note  engine llama: GPU 0: has room",
        "1 engine to start: 1 error, 1 warning",
    ]


def test_without_findings_the_summary_remains() -> None:
    assert list(report_lines([], 3)) == ["3 engines to start: 0 errors, 0 warnings"]


def test_json_has_every_field_of_a_finding() -> None:
    report = json.loads(report_json(FINDINGS))
    assert report["ok"] is False
    assert report["findings"][0] == {
        "severity": "error",
        "engine": "llama",
        "setting": "url",
        "problem": "port 8001 is in use",
        "remedy": "Stop it.",
    }


def test_warnings_alone_are_no_failure() -> None:
    assert has_errors(FINDINGS)
    assert not has_errors(FINDINGS[1:])
    assert json.loads(report_json(FINDINGS[1:]))["ok"] is True


def test_control_characters_do_not_reach_the_terminal() -> None:
    first, *_ = report_lines([error(None, "url", "in use by \x1b[2Jx", "Stop it.")], 0)
    assert first == "FAIL  url: in use by \\x1b[2Jx"


def test_a_good_machine_has_no_errors_or_warnings() -> None:
    assert {finding.severity for finding in check_all(make_observations(make_engine()))} == {"note"}


def test_errors_come_first_and_everything_has_a_remedy_but_notes() -> None:
    findings = check_all(broken_machine())
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities, key=("error", "warning", "note").index)
    assert set(severities) == {"error", "warning", "note"}
    assert [finding for finding in findings if finding.severity != "note" and not finding.remedy] == []


def test_remedies_are_one_sentence_and_problems_are_none() -> None:
    findings: list[Finding] = check_all(broken_machine())
    for finding in findings:
        assert not finding.problem.endswith(".")
        assert finding.remedy == "" or finding.remedy.endswith(".")


def test_the_example_of_the_documentation_is_what_is_printed() -> None:
    page = (ROOT / "docs" / "running-engines.md").read_text(encoding="utf-8")
    example = re.search(r"\$ roundhouse engines preflight\n(.*?)```", page, re.DOTALL)
    assert example is not None
    observed = broken_machine()
    printed = "\n".join(report_lines(check_all(observed), len(observed.engines)))
    assert example[1].strip() == printed
