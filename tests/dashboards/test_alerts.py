"""The alerts: Prometheus' own tool runs their tests, and each has a runbook."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from router.cli import app
from tests.support.paths import ROOT
from tools.dashboards.alert_tests import ALERT_TESTS
from tools.dashboards.alerts import ALERTS, RUNBOOKS
from tools.dashboards.generated_files import generated_files
from tools.dashboards.prometheus_files import EVALUATION_INTERVALS

PROMTOOL = shutil.which("promtool")
FOLDER = ROOT / "deploy" / "prometheus"
RUNBOOK = (ROOT / RUNBOOKS).read_text()

needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


def promtool(*arguments: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    assert "SUCCESS" in promtool("check", "config", "prometheus.yml")
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", "alerts.rules.yml")


def test_the_page_states_how_many_rules_promtool_finds() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text(encoding="utf-8")
    for name, kind in (("alerts", "alert"), ("recording", "record")):
        groups = yaml.safe_load((FOLDER / f"{name}.rules.yml").read_text())["groups"]
        rules = [rule for group in groups for rule in group["rules"] if kind in rule]
        assert f"Checking {name}.rules.yml\n  SUCCESS: {len(rules)} rules found\n" in page


@needs_promtool
@pytest.mark.parametrize("name", EVALUATION_INTERVALS)
def test_the_tests_of_the_alerts_pass(name: str) -> None:
    promtool("test", "rules", f"tests/{name}.test.yml")


@needs_promtool
def test_a_wrong_threshold_fails_the_tests_of_the_alerts(tmp_path: Path) -> None:
    for path, text in generated_files().items():
        if path.startswith("deploy/prometheus/"):
            copy = tmp_path / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text.replace("> 0.9", "> 0.96"))
    tests = tmp_path / "deploy/prometheus/tests/alerts.test.yml"
    file = yaml.safe_load(tests.read_text())
    # All others would take as long as the test before this one.
    file["tests"] = [test for test in file["tests"] if test["name"].startswith("KVCacheNearlyFull")]
    tests.write_text(yaml.safe_dump(file))
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "test", "rules", str(tests)], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "KVCacheNearlyFull" in done.stdout + done.stderr


@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_an_alert_has_tests_in_which_it_fires_and_others_in_which_it_stays_silent(alert: str) -> None:
    tests = [test for test in ALERT_TESTS if test.alert == alert]
    assert any(test.fires for test in tests)
    assert any(not test.fires for test in tests)


def test_an_alert_states_its_severity_summary_value_and_runbook() -> None:
    rules = yaml.safe_load((FOLDER / "alerts.rules.yml").read_text())["groups"][0]["rules"]
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]
        assert "$value" in rule["annotations"]["description"]
        assert rule["annotations"]["runbook_url"].startswith(f"{RUNBOOKS}#")


# -- the runbooks ------------------------------------------------------------------------------------------------------


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    headings = re.findall(r"^## (.*)$", RUNBOOK, re.MULTILINE)
    assert [heading.lower().replace(" ", "-") for heading in headings] == [alert.runbook for alert in ALERTS]


@pytest.mark.parametrize("section", RUNBOOK.split("\n## ")[1:], ids=lambda section: section.partition("\n")[0])
def test_a_runbook_says_what_it_means_what_to_look_at_and_what_to_do(section: str) -> None:
    assert re.findall(r"^\*\*(.*?)\.\*\*", section, re.MULTILINE) == ["Meaning", "Look at", "Do"]


def commands() -> Iterator[list[str]]:
    for line in re.findall(r"\broundhouse ((?:[a-z]+ ?)+(?:--?[a-z-]+)*)", RUNBOOK):
        yield line.split()


def test_the_commands_in_the_runbooks_exist() -> None:
    root = get_command(app)
    checked = 0
    for words in commands():
        command = root
        for word in words:
            subcommands = getattr(command, "commands", None)
            if subcommands is None:
                break
            assert word in subcommands, f"roundhouse {' '.join(words)}"
            command = subcommands[word]
        checked += 1
    assert checked > 10


def test_the_metrics_in_the_runbooks_exist() -> None:
    documented = (ROOT / "docs" / "operating.md").read_text()
    named = set(re.findall(r"\b(?:llm|vllm|roundhouse)_[a-z_]+", RUNBOOK))
    assert [name for name in sorted(named) if f"`{name}`" not in documented] == []
