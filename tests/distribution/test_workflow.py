""".github/workflows/wheels.yml: pinned actions, and the rights that it has."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT
from tools.wheels.interpreters import wanted_versions

PYPROJECT = (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    return found


def test_every_action_is_pinned_to_a_commit(jobs: dict[str, Any]) -> None:
    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)


def test_only_the_upload_may_get_a_token_and_it_waits_for_all_wheels(jobs: dict[str, Any]) -> None:
    assert {name for name, job in jobs.items() if "permissions" in job} == {"publish"}
    publish = jobs["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert set(publish["needs"]) == set(jobs) - {"publish"}
    assert "refs/tags/v" in publish["if"]


def test_every_supported_python_gets_a_compiled_wheel() -> None:
    project = tomllib.loads(PYPROJECT)["project"]
    marker = "Programming Language :: Python :: "
    supported = {each.removeprefix(marker) for each in project["classifiers"] if each.startswith(marker)}
    assert supported <= set(wanted_versions(PYPROJECT))
    assert f">={min(supported, key=lambda version: int(version[2:]))}" == project["requires-python"]


def test_the_wheels_are_compiled_with_the_pinned_tools() -> None:
    environment = tomllib.loads(PYPROJECT)["tool"]["cibuildwheel"]["environment"]
    # cibuildwheel copies the sources there.
    assert environment["PIP_CONSTRAINT"] == environment["PIP_BUILD_CONSTRAINT"] == "/project/constraints.txt"
    assert environment["ROUNDHOUSE_COMPILE"] == "1"
