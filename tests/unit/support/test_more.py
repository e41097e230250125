"""Which groups of `make test-more` run."""

import subprocess
from pathlib import Path

import pytest

from tests import more
from tests.more import ALWAYS, GROUPS, changed_files, changed_groups, selected_groups
from tests.support.paths import ROOT


def test_a_group_runs_if_one_of_its_paths_or_of_its_tests_has_changed() -> None:
    assert changed_groups(["router/dashboard/page.html"]) == ["chaos", "browser"]
    assert changed_groups(["docs/behind-a-proxy.md", "lab/soak.py"]) == ["proxies", "lab"]
    assert changed_groups(["tests/distribution/test_contents.py"]) == ["wheels"]
    assert changed_groups(["tests/integration/test_ray_placement.py"]) == ["ray"]


def test_nothing_runs_if_nothing_of_it_has_changed() -> None:
    assert changed_groups([]) == []
    assert changed_groups(["README.md", "tests/unit/router/test_units.py", "laboratory.md", "setup.python"]) == []


def test_a_change_of_what_all_need_runs_all() -> None:
    for path in ALWAYS:
        assert changed_groups([path]) == list(GROUPS)


def test_every_path_of_a_group_is_there() -> None:
    paths = {path for group in GROUPS.values() for path in (*group.tests, *group.paths, *ALWAYS)}
    assert {path for path in paths if not (ROOT / path).exists()} == set()


def test_changed_files_are_those_of_commits_of_the_work_tree_and_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    monkeypatch.setattr(more, "ROOT", tmp_path)
    for name in ("same", "committed", "edited", "removed"):
        (tmp_path / name).write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "green")
    green = git("rev-parse", "HEAD").strip()
    (tmp_path / "committed").write_text("after")
    git("commit", "-q", "-a", "-m", "later")
    (tmp_path / "edited").write_text("after")
    (tmp_path / "new").write_text("after")
    (tmp_path / "removed").unlink()
    assert sorted(changed_files(green) or []) == ["committed", "edited", "new", "removed"]
    assert changed_files("0" * 40) is None


def test_all_groups_run_if_the_green_commit_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    green = tmp_path / "green"
    green.write_text("0" * 40 + "\n")
    monkeypatch.setattr(more, "GREEN", green)
    assert selected_groups(only_changed=True) == list(GROUPS)
    assert "is not in this clone: all groups run" in capsys.readouterr().out


def test_the_output_says_which_groups_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(more, "changed_files", lambda _: ["lab/soak.py"])
    assert selected_groups(only_changed=True) == ["lab"]
    assert capsys.readouterr().out == "groups that run: lab; unchanged: chaos, proxies, browser, wheels, ray\n"
    assert selected_groups(only_changed=False) == list(GROUPS)
