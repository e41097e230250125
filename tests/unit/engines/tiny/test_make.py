"""Making the small models: everything that needs no torch, and, in vLLM's own Python, the training itself."""

import importlib
import importlib.util
import io
import json
import os
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

import engines.tiny
from engines.spec import EngineSpec
from engines.tiny.__main__ import main
from engines.tiny.folder import MARKER, ForeignFolderError, atomic_replace, is_complete
from engines.tiny.plan import MODELS, VERSION
from engines.tiny.progress import progress
from engines.vllm_command import vllm_argv, vllm_env

CONFIGURATION = Path(engines.tiny.__file__).parent / "roundhouse.toml"


def engines_of_the_configuration(models: str) -> list[EngineSpec]:
    text = re.sub(r"\$\{ROUNDHOUSE_MODELS:-[^}]*\}", models, CONFIGURATION.read_text())
    return msgspec.convert(tomllib.loads(text)["engine"], list[EngineSpec])


def test_a_folder_appears_complete_and_marked(tmp_path: Path) -> None:
    out = tmp_path / "models"
    with atomic_replace(out, "v1") as making:
        (making / "llama").mkdir()
        assert not out.exists()
    assert (out / "llama").is_dir()
    assert is_complete(out, "v1")
    assert not is_complete(out, "v2")
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_failed_creation_leaves_the_previous_folder(tmp_path: Path) -> None:
    out = tmp_path / "models"
    with atomic_replace(out, "v1") as making:
        (making / "old").touch()

    def fail() -> None:
        with atomic_replace(out, "v2") as making:
            (making / "new").touch()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert {path.name for path in out.iterdir()} == {"old", MARKER}
    assert is_complete(out, "v1")
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_new_version_replaces_the_old_one_completely(tmp_path: Path) -> None:
    out = tmp_path / "models"
    for version in ("v1", "v2"):
        with atomic_replace(out, version) as making:
            (making / version).touch()
    assert {path.name for path in out.iterdir()} == {"v2", MARKER}


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_a_folder_created_by_others_is_left_alone(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "models"
    if kind == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "mine").touch()
    with pytest.raises(ForeignFolderError, match="choose another folder"), atomic_replace(out, "v1"):
        pass
    assert out.read_text() == "mine" if kind == "file" else (out / "mine").exists()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 3}', "\x00"])
def test_a_broken_marker_marks_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / MARKER).write_text(content)
    assert not is_complete(tmp_path, "3")


def test_a_second_call_returns_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "models"
    with atomic_replace(out, VERSION):
        pass
    assert main(["make", "--out", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["made"], summary["models"]) == (False, [])


@pytest.mark.parametrize(
    ("made", "asked", "is_enough"),
    [
        (["--part", "0.1"], ["--part", "0.1"], True),
        ([], ["--part", "0.1"], True),
        (["--part", "0.1"], [], False),
        (["--part", "0.1"], ["--part", "0.2"], False),
    ],
)
def test_complete_models_do_in_place_of_those_of_a_part_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: list[str], asked: list[str], is_enough: bool
) -> None:
    parts: list[float] = []
    monkeypatch.setattr("engines.tiny.__main__.load_libraries", lambda _threads: None)

    def make_models(_libraries: object, _folder: object, _stage: object, part: float, _limit_s: object) -> list[object]:
        parts.append(part)
        return []

    monkeypatch.setattr("engines.tiny.__main__.make_models", make_models)
    for arguments in (made, asked):
        assert main(["make", "--out", str(tmp_path / "models"), *arguments]) == 0
    wanted = [float(arguments[1]) if arguments else 1.0 for arguments in (made, asked)]
    assert parts == (wanted[:1] if is_enough else wanted)


def test_a_python_without_torch_gives_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert main(["make", "--out", str(tmp_path / "models")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: cannot import torch")
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [".models.lock"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["make"], ["make", "--out", "x", "--seconds", "0"], ["make", "--out", "x", "--part", "0"], ["break"]],
)
def test_a_usage_error_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_of:
        main(arguments)
    assert exit_of.value.code == 2


def test_progress_is_plain_lines_without_a_terminal() -> None:
    stream = io.StringIO()
    with progress(stream) as stage, stage("train llama") as report:
        report(0.5, 3.0)
        report(1.0, 2.0)
    first, last = stream.getvalue().splitlines()
    assert first == "train llama ..."
    assert re.fullmatch(r"train llama: \d+ s, loss 2\.00", last)


def test_a_target_is_created_before_its_drafts_and_the_shares_of_time_add_up_to_one() -> None:
    names = [plan.name for plan in MODELS]
    assert all(plan.target is None or plan.target in names[: names.index(plan.name)] for plan in MODELS)
    assert sum(plan.share for plan in MODELS) == pytest.approx(1)


def test_heads_have_the_size_that_vllm_requires_and_are_divided_evenly() -> None:
    for plan in MODELS:
        assert plan.shape.hidden % plan.shape.heads == 0
        assert plan.shape.hidden // plan.shape.heads >= 32
        assert plan.shape.heads % 2 == 0


def test_the_configuration_starts_exactly_the_models_that_are_created() -> None:
    expected = {
        Path(model).name
        for spec in engines_of_the_configuration("/models")
        if spec.launch is not None
        for model in (spec.launch.target, spec.launch.draft)
        if model is not None
    }
    assert expected == {plan.name for plan in MODELS}


def test_the_configuration_names_the_version_of_the_models_as_their_revision() -> None:
    models = tomllib.loads(CONFIGURATION.read_text())["model"]
    assert {model["revision"] for model in models} == {VERSION}


def test_the_configuration_marks_only_qwen_as_having_another_vocabulary() -> None:
    collected = {}
    for spec in engines_of_the_configuration("/models"):
        argv = vllm_argv(spec, "python")
        speculation = json.loads(argv[argv.index("--speculative-config") + 1])
        collected[spec.name] = speculation.get("use_heterogeneous_vocab", False)
        assert "VLLM_CPU_KVCACHE_SPACE" not in vllm_env(spec, cpu=True)
    assert collected == {"llama-chat": True, "llama-code": False, "mistral": False}


def test_the_worker_extension_of_the_configuration_exists() -> None:
    for spec in engines_of_the_configuration("/models"):
        argv = vllm_argv(spec, "python")
        module, _, name = argv[argv.index("--worker-extension-cls") + 1].rpartition(".")
        spec_ = importlib.util.find_spec(module)
        assert spec_ is not None
        assert spec_.origin is not None
        assert f"class {name}:" in Path(spec_.origin).read_text()
