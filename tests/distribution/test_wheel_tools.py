"""`make wheels`: the Pythons that it finds, and the files that it builds from."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.wheels.distributions import Builder, BuildError, copy_sources
from tools.wheels.interpreters import find_interpreter, wanted_versions

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def test_the_versions_are_those_that_the_workflow_builds() -> None:
    assert wanted_versions('[tool.cibuildwheel]\nbuild = ["cp39-*", "cp312-*", "pp311-*"]') == ["3.9", "3.12"]


def test_the_newest_python_of_pyenv_is_taken_where_the_shim_on_the_path_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "shims" / f"python{THIS}", "exit 127")
    monkeypatch.setenv("PATH", f"{tmp_path / 'shims'}:/usr/bin:/bin")
    pythons = [tmp_path / "versions" / f"{THIS}.{patch}" / "bin" / "python" for patch in (9, 10)]
    for python in pythons:
        script(python, f'exec {sys.executable} "$@"')
    found = find_interpreter(THIS, tmp_path)
    assert found is not None
    assert (found.version, found.path) == (THIS, pythons[1])


def test_a_python_of_another_version_and_one_without_headers_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    script(tmp_path / "python3.99", "echo 3.11")
    script(tmp_path / "python3.98")
    assert find_interpreter("3.99", tmp_path) is None
    assert find_interpreter("3.98", tmp_path) is None
    assert find_interpreter("3.97", tmp_path) is None


def test_only_files_that_git_knows_or_could_take_are_copied(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "build").mkdir(parents=True)
    for name in ("kept", "new", "deleted", "build/old"):
        (root / name).write_text(name)
    (root / "link").symlink_to("kept")
    (root / ".gitignore").write_text("build/\n")
    for command in (["init", "-q"], ["add", "kept", "deleted", "link"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (root / "deleted").unlink()
    copy_sources(root, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {"kept", "new", "link", ".gitignore"}
    assert (tmp_path / "copy" / "link").readlink() == Path("kept")


def test_a_failed_build_says_what_the_tool_said(tmp_path: Path) -> None:
    tool = script(tmp_path / "python", "echo no such hook >&2", "exit 3")
    (tmp_path / "dist").mkdir()
    with pytest.raises(BuildError, match="no such hook"):
        Builder(tool, tmp_path, tmp_path / "dist", 0).build_sdist()
