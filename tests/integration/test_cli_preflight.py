"""`roundhouse engines preflight` as a user runs it, on this machine: real ports, small folders for models, no vLLM."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_helpers import CommandResult, run_cli
from tests.support.model_files import write_model
from tests.support.ports import free_port

ENGINE = """
[[engine]]
name = "{name}"
model = "llama"
url = "http://127.0.0.1:{port}"
max_model_len = {context}

[engine.launch]
target = "{target}"
{draft}
args = {args}
env = {{ CUDA_VISIBLE_DEVICES = "" }}
"""

Configure = Callable[..., Path]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Writes a configuration whose router listens on a free port."""

    def write(*engines: str) -> Path:
        path = tmp_path / "roundhouse.toml"
        router = f'[router]\nport = {free_port()}\nstate = "{tmp_path / "state"}"\n'
        path.write_text(f'{router}[[model]]\nname = "llama"\n{"".join(engines)}')
        return path

    return write


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter in which preflight finds vLLM."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\necho 0.32.0\n")
    path.chmod(0o755)
    return path


def engine(
    target: Path, draft: Path | str | None = None, *, name: str = "llama", port: int | None = None, context: int = 4096,
    args: list[str] | None = None,
) -> str:  # fmt: skip
    return ENGINE.format(
        name=name, port=port or free_port(), context=context, target=target, args=json.dumps(args or []),
        draft="" if draft is None else f'draft = "{draft}"',
    )  # fmt: skip


def problems(result: CommandResult, severity: str = "error") -> list[tuple[str | None, str]]:
    found: list[dict[str, Any]] = result.json()["findings"]
    return [(one["engine"], one["setting"]) for one in found if one["severity"] == severity]


async def test_engines_that_can_start_pass(tmp_path: Path, configure: Configure, python: Path) -> None:
    target, draft = write_model(tmp_path / "target"), write_model(tmp_path / "draft")
    result = await run_cli("engines", "preflight", "-c", configure(engine(target, draft)), "--vllm-python", python)
    assert (result.code, result.stderr) == (0, ""), result.stdout
    assert "note  engine llama: launch.draft: has the vocabulary of the target" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 engine to start: 0 errors, 0 warnings"


async def test_every_problem_is_found_at_once(
    tmp_path: Path, configure: Configure, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-secret-key")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    target = write_model(tmp_path / "target", generation={"min_p": 0.05})
    other = write_model(tmp_path / "draft", tokens={"x": 0, "y": 1, "c": 2}, config={"max_position_embeddings": 512})
    (other / "model.safetensors").unlink()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--speculative-config", json.dumps({"method": "draft_model", "model": str(other)})]
        config = configure(
            engine(target, other, name="a", port=port, context=8192, args=options),
            engine(target, "org/Draft-1B", name="b", args=["--kv-cache-memory-bytes", "1K"]),
        )
        result = await run_cli("engines", "preflight", "-c", config, "--vllm-python", python, "--json")
    assert (result.code, result.json()["ok"]) == (1, False)
    assert problems(result) == [
        ("a", "url"),
        ("a", "launch.draft"),
        ("b", "launch.draft"),
        ("a", "max_model_len"),
        ("a", "launch.heterogeneous_vocab"),
        ("b", "memory"),
        ("a", "launch.target"),
        ("b", "launch.target"),
        ("a", "VLLM_API_KEY"),
        ("b", "VLLM_API_KEY"),
    ]
    assert problems(result, "warning") == [("a", "launch.draft")]
    assert "a-secret-key" not in result.stdout


async def test_a_model_in_the_cache_of_the_hub_is_used(
    tmp_path: Path, configure: Configure, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    cached = tmp_path / "hub" / "models--org--Llama-8B"
    write_model(cached / "snapshots" / "c1")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("c1")
    config = configure(engine(Path("org/Llama-8B"), name="a"), engine(Path("org/Llama-9B"), name="b"))
    result = await run_cli("engines", "preflight", "-c", config, "--vllm-python", python, "--json")
    assert problems(result, "warning")[:1] == [("b", "launch.target")]


async def test_without_vllm_it_fails(tmp_path: Path, configure: Configure) -> None:
    config = configure(engine(write_model(tmp_path / "target")))
    result = await run_cli("engines", "preflight", "-c", config, "--vllm-python", tmp_path / "none")
    assert result.code == 1
    assert result.stdout.startswith("FAIL  vLLM: is not installed")


async def test_engines_that_are_started_elsewhere_are_not_checked(configure: Configure) -> None:
    config = configure(ENGINE.partition("[engine.launch]")[0].format(name="a", port=9, context=8192))
    result = await run_cli("engines", "preflight", "-c", config)
    assert (result.code, result.stdout) == (0, "0 engines to start: 0 errors, 0 warnings\n")


async def test_a_configuration_that_cannot_be_used_is_wrong_use(tmp_path: Path) -> None:
    result = await run_cli("engines", "preflight", "-c", tmp_path / "none.toml")
    assert (result.code, result.stdout) == (2, "")
