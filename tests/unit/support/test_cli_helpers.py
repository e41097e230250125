"""A command in a thread has the result that it has as a process."""

from pathlib import Path
from typing import Final

import pytest

from tests.support.cli_helpers import run_cli, run_cli_process

PLAN: Final = """
[router]
state = "state"
port = 1
[[model]]
name = "llama"
[[engine]]
name = "one"
model = "llama"
url = "http://127.0.0.1:1"
[engine.launch]
target = "org/none"
"""
FILE: Final = ("-c", "roundhouse.toml")


async def test_output_errors_and_exit_code_are_those_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roundhouse.toml").write_text(PLAN)
    commands = (
        (2, ("cache", "stat"), b""),
        (0, ("classify", "--json"), b'{"prompt": "f\xc3\xbcr alle"}\n'),
        (1, ("engines", "preflight", "--json", "--vllm-python", "none", *FILE), b""),
        (0, ("up", "--dry-run", "--engines", "simulator", *FILE), b""),
        (2, ("serve", "-c", "none"), b""),
    )
    monkeypatch.delenv("COLUMNS", raising=False)
    for code, words, stdin in commands:
        result = await run_cli(*words, stdin=stdin)
        assert result == await run_cli_process(*words, stdin=stdin)
        assert result.code == code, words
