"""The README.md of benchmarks, and that of lab, list every file of their folder, and no other."""

import re

import pytest

from tests.support.paths import ROOT


@pytest.mark.parametrize("name", ["benchmarks", "lab"])
def test_the_page_lists_every_benchmark_and_what_they_share(name: str) -> None:
    folder = ROOT / name
    page = (folder / "README.md").read_text(encoding="utf-8")
    first_cells = " ".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE))
    listed = re.findall(r"`([\w/]+)`", first_cells)
    files = {path.stem for path in folder.glob("*.py")}
    folders = {f"{path.name}/" for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert sorted(listed) == sorted(files | folders)
