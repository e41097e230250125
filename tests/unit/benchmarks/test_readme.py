"""benchmarks/README.md lists every file of its folder, and no other."""

import re

from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks"


def test_the_page_lists_every_benchmark_and_what_they_share() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    first_cells = " ".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE))
    listed = re.findall(r"`([\w/]+)`", first_cells)
    files = {path.stem for path in FOLDER.glob("*.py")}
    folders = {f"{path.name}/" for path in FOLDER.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert sorted(listed) == sorted(files | folders)
