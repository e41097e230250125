"""A wrong option of a benchmark, or of a study in lab, is rejected with exit code 2, before anything is started."""

import asyncio
import inspect
import re
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks.options import at_least_zero, count, counts, input_file, output_file, positive, share
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (positive, "0.5", 0.5),
        (at_least_zero, "0", 0.0),
        (share, "1", 1.0),
        (count, "2000", 2000),
        (counts, "1,2", [1, 2]),
    ],
)
def test_a_right_value_is_read(kind: Callable[[str], Any], text: str, value: Any) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (positive, ["0", "-1", "nan", "inf", "abc", ""]),
        (at_least_zero, ["-0.1", "inf", "abc"]),
        (share, ["-0.1", "1.1", "nan", "abc"]),
        (count, ["0", "-1", "1.5", "abc", ""]),
        (counts, ["1,0", "1,,2", "abc", ""]),
    ],
)
def test_a_wrong_value_is_named(kind: Callable[[str], Any], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(ArgumentTypeError, match="is not a"):
            kind(text)


def test_a_file_is_checked_before_the_measurement(tmp_path: Path) -> None:
    new, missing, existing = tmp_path / "new.json", tmp_path / "missing" / "new.json", tmp_path / "existing.json"
    existing.write_text("{}")
    assert output_file(str(new)) == new
    assert output_file(str(existing)) == input_file(str(existing)) == existing
    assert not new.exists()
    for wrong in (missing, tmp_path):
        with pytest.raises(ArgumentTypeError, match="cannot be written"):
            output_file(str(wrong))
        with pytest.raises(ArgumentTypeError, match="cannot be read"):
            input_file(str(wrong))


@pytest.mark.parametrize(
    "command",
    [
        "benchmarks.open_loop --concurrency-ramp 0", "benchmarks.open_loop --json /missing/x.json",
        "benchmarks.added_latency --rounds 0", "benchmarks.ramp --streams 0", "benchmarks.ramp --ramp 0",
        "benchmarks.ramp --events-per-second 0", "lab.soak --minutes 0", "lab.soak --workers 0",
        "lab.soak --json /missing/x.json", "benchmarks.workers --workers 0", "benchmarks.workers --workers two",
        "benchmarks.workers --only nothing", "benchmarks.workers --connections 1", "lab.redis_limit --requests 0",
        "lab.redis_limit --json /missing/x.json", "lab.scale_simulation --users 0",
        "lab.scale_simulation --users 1000000000", "lab.scale_simulation --hit 2",
        "lab.scale_simulation --costs /missing", "lab.scale_validation --only nothing",
        "lab.scale_costs --output /missing/x.json", "lab.eviction --requests 0",
        "benchmarks.routing.__main__ --workloads chats", "benchmarks.routing.__main__ --slow 1:0",
        "benchmarks.routing.__main__ --slow 5:2", "benchmarks.routing.__main__ --seeds 1,",
    ],
)  # fmt: skip
def test_wrong_use_has_exit_code_2_and_names_the_option(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, option, _ = command.split()
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as ended:
        run(import_module(name).main)
    assert ended.value.code == 2
    assert f"{option}: " in capsys.readouterr().err


def run(main: Callable[[], Any]) -> None:
    if inspect.iscoroutinefunction(main):
        asyncio.run(main())
    else:
        main()


@pytest.mark.parametrize(("folder", "at_least"), [("benchmarks", 15), ("lab", 7)])
def test_every_benchmark_of_the_page_has_help(folder: str, at_least: int) -> None:
    page = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    questions = page.partition("What several of them share")[0]
    names = set(re.findall(r"^\| `(\w+)` \|", questions, re.MULTILINE)) - {"locustfile"}
    assert len(names) >= at_least
    without = {name for name in names if "ArgumentParser(" not in (ROOT / folder / f"{name}.py").read_text()}
    assert without == set()
