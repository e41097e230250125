"""The command line of the simulator."""

from pathlib import Path

import pytest

from engines.simulator.__main__ import parse_arguments


def test_the_time_model_is_given_in_the_units_of_its_options() -> None:
    options = "--model m --prefill-tokens-per-second 4000 --decode-ms 0.2 --max-num-batched-tokens 512"
    settings = parse_arguments(options.split()).settings
    assert (settings.prefill_tokens_per_second, settings.decode, settings.batched_tokens) == (4000, 0.0002, 512)
    assert settings.has_time_model


def test_without_its_options_there_is_no_time_model() -> None:
    options = "--model m --ttft-ms 100 --tokens-per-second 80 --max-num-batched-tokens 512"
    arguments = parse_arguments(options.split())
    assert not arguments.settings.has_time_model


def test_kv_events_without_pyzmq_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engines.simulator.__main__.find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        parse_arguments(["--model=m", '--kv-events-config={"enable_kv_cache_events": true}'])
    assert "needs pyzmq: pip install 'roundhouse-simulator[kv-events]'" in capsys.readouterr().err
    disabled = parse_arguments(["--model=m", '--kv-events-config={"publisher": "null"}'])
    assert not disabled.settings.kv_events.is_published


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--prefill-tokens-per-second", "-1"), ("--decode-ms", "fast"), ("--ttft-ms", "inf"), ("--ttft-ms", "-0.1"),
        ("--tokens-per-second", "nan"),
    ],
)  # fmt: skip
def test_a_time_or_speed_that_is_none_is_named(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(["--model", "m", f"{option}={value}"])
    assert ended.value.code == 2
    assert f"argument {option}: expected a number from 0, got '{value}'" in capsys.readouterr().err


def test_a_budget_that_vllm_refuses_is_refused_with_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["--model", "m", "--max-num-batched-tokens=8"])
    said = "max_num_batched_tokens (8) must be greater than or equal to max_num_seqs (256)"
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", [None, "[]", '{"calls": 1, "tools": {}, "more": 1}'])
def test_a_tool_script_that_cannot_be_read_is_named(
    text: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit):
        parse_arguments(["--model=m", f"--tool-script={path}"])
    assert f"argument --tool-script: {path}: " in " ".join(capsys.readouterr().err.split())
