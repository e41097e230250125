"""Logs are kept over restarts, and bounded in size."""

from pathlib import Path

import pytest

from engines.logs import KEPT, rotate, rotate_if_large


def contents(log: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in log.parent.iterdir()}


def test_the_last_logs_are_kept_and_the_oldest_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "e0.log"
    for number in range(KEPT + 2):
        rotate(log)
        log.write_text(str(number))
    expected = {"e0.log": str(KEPT + 1), **{f"e0.log.{age}": str(KEPT + 1 - age) for age in range(1, KEPT + 1)}}
    assert contents(log) == expected


def test_rotating_without_a_log_does_nothing(tmp_path: Path) -> None:
    rotate(tmp_path / "e0.log")
    assert list(tmp_path.iterdir()) == []


def test_a_large_log_is_rotated_while_its_process_writes(tmp_path: Path) -> None:
    log = tmp_path / "e0.log"
    with log.open("ab", buffering=0) as process_output:
        process_output.write(b"first\n")
        assert rotate_if_large(log, max_size=3)
        process_output.write(b"second\n")
    assert contents(log) == {"e0.log": "second\n", "e0.log.1": "first\n"}


def test_a_small_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "e0.log"
    log.write_text("first\n")
    assert not rotate_if_large(log, max_size=6)
    assert contents(log) == {"e0.log": "first\n"}


def test_a_log_that_cannot_be_copied_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engines.logs.shutil.copyfile", no_space)
    log = tmp_path / "e0.log"
    log.write_text("first\n")
    assert not rotate_if_large(log, max_size=1)
    assert contents(log) == {"e0.log": "first\n"}
