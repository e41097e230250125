"""deploy/systemd: accepted by systemd itself, and in step with the router's own periods."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from router.settings.tables import RouterSettings
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNITS = ("roundhouse@", "vllm@")
MOST_EXPOSED = {"roundhouse@": 1.5, "vllm@": 2.5}
"""The exposure that `systemd-analyze security` may find, from 0 to 10. An engine needs devices and writable code."""


def directives(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (FOLDER / f"{unit}.service").read_text().splitlines():
        name, equals_sign, value = line.partition("=")
        if equals_sign and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


@pytest.fixture(params=UNITS)
def instance(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit as an instance, whose programs exist."""
    unit: str = request.param
    text = (FOLDER / f"{unit}.service").read_text()
    for program in ("roundhouse", "vllm"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
        text = re.sub(rf"(?m)^(Exec\w+)={program} ", rf"\1={tmp_path / program} ", text)
    path = tmp_path / f"{unit}main.service"
    path.write_text(text)
    return path


def analyze(*arguments: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here (apt-get install systemd)")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_systemd_accepts_the_unit(instance: Path) -> None:
    analyze("verify", "--man=no", str(instance))


def test_a_typing_error_in_a_unit_is_found(instance: Path) -> None:
    instance.write_text(instance.read_text().replace("NoNewPrivileges=", "NoNewPrivilege="))
    with pytest.raises(AssertionError):
        analyze("verify", "--man=no", str(instance))


def test_the_unit_is_hardened(instance: Path) -> None:
    limit = MOST_EXPOSED[f"{instance.name.partition('@')[0]}@"]
    analyze("security", "--offline=true", f"--threshold={round(limit * 10)}", str(instance))


def test_systemd_waits_as_long_as_a_shutdown_takes() -> None:
    router = RouterSettings()
    assert int(directives("roundhouse@")["TimeoutStopSec"][0]) == router.drain + router.grace + 5


def test_relative_folders_are_where_the_unit_may_write() -> None:
    found = directives("roundhouse@")
    assert found["WorkingDirectory"] == [f"%S/{found['StateDirectory'][0]}"]
    # Instances have users of their own, so each needs a folder of its own.
    assert found["StateDirectory"][0].endswith("-%i")


@pytest.mark.parametrize("unit", UNITS)
def test_secrets_come_from_a_file_and_are_in_no_command(unit: str) -> None:
    found = directives(unit)
    assert found["EnvironmentFile"][0].endswith("/%i.env")
    assert not [value for value in found["ExecStart"] + found["Environment"] if "TOKEN" in value or "PASSWORD" in value]


def test_the_example_of_redis_has_the_settings_of_the_compose_file() -> None:
    def settings(path: Path) -> set[str]:
        return {line for line in path.read_text().splitlines() if line.startswith(("append", "maxmemory-", "save"))}

    assert settings(FOLDER / "redis.conf") == settings(ROOT / "deploy" / "redis" / "redis.conf")
