"""Mistakes in the arguments of `roundhouse batch run` are found before anything is sent."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from router.commands.batch.run_arguments import check_input, check_outputs, check_window, endpoint_of, parse_metadata

REQUEST = b'{"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {}}\n'


def usage_error(capsys: pytest.CaptureFixture[str], check: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(typer.Exit) as ended:
        check(*arguments)
    assert ended.value.exit_code == 2
    return capsys.readouterr().err


def test_metadata_are_names_with_values() -> None:
    assert parse_metadata(["team=search", "note=a=b", "empty="], None) == {"team": "search", "note": "a=b", "empty": ""}


def test_cache_control_is_a_name_of_the_metadata() -> None:
    assert parse_metadata([], "no-store") == {"cache_control": "no-store"}


@pytest.mark.parametrize(
    ("pairs", "control", "error"),
    [
        (["team"], None, "--metadata team: expected NAME=VALUE"),
        (["=x"], None, "--metadata =x: expected NAME=VALUE"),
        (["a=1", "a=2"], None, "--metadata a: it is given twice"),
        (["cache_control=x"], "no-store", "--cache-control: --metadata cache_control says the same"),
    ],
)
def test_metadata_that_say_nothing_or_two_things_are_refused(
    pairs: list[str], control: str | None, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert usage_error(capsys, parse_metadata, pairs, control) == f"roundhouse: {error}\n"


def test_a_window_is_a_duration(capsys: pytest.CaptureFixture[str]) -> None:
    check_window("90m")
    for text in ("24", "31d", ""):
        assert "expected a duration such as" in usage_error(capsys, check_window, text)


def test_the_endpoint_is_the_url_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(REQUEST + b"not read")
    assert endpoint_of(file) == "/v1/embeddings"


@pytest.mark.parametrize("line", [b"[]\n", b"{\n", b'{"url": 1}\n', b"\xff\n", b"[" * 100_000])
def test_a_first_line_that_is_no_request_is_an_error(
    line: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(line)
    assert "the first line is no request of a batch" in usage_error(capsys, endpoint_of, file)


def test_a_first_line_without_url_needs_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.jsonl"
    file.write_bytes(b"{}\n")
    assert "give the endpoint with --endpoint" in usage_error(capsys, endpoint_of, file)


def test_the_input_is_a_file_with_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert "No such file" in usage_error(capsys, check_input, tmp_path / "missing")
    assert "Is a directory" in usage_error(capsys, check_input, tmp_path)
    assert "the file is empty" in usage_error(capsys, check_input, empty)
    assert "expected a regular file" in usage_error(capsys, check_input, Path(os.devnull))


def test_results_replace_neither_the_input_nor_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, same = tmp_path / "in.jsonl", tmp_path / "folder" / ".." / "in.jsonl"
    file.write_bytes(REQUEST)
    assert f"it would replace {file}" in usage_error(capsys, check_outputs, {"--out": same}, file)
    twice = {"--out": tmp_path / "out", "--errors": tmp_path / "out"}
    assert "--errors" in usage_error(capsys, check_outputs, twice, file)


def test_results_need_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_outputs({"--out": Path("-"), "--errors": None}, None)
    check_outputs({"--out": tmp_path / "out"}, None)
    assert "it is a directory" in usage_error(capsys, check_outputs, {"--out": tmp_path}, None)
    missing = {"--out": tmp_path / "missing" / "out"}
    assert "there is no directory" in usage_error(capsys, check_outputs, missing, None)
