"""What is read of a model: real files, as small as they can be."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from engines.preflight.gather.model_folder import find_model_folder, hub_cache
from engines.preflight.gather.model_shape import ModelConfig, model_shape
from engines.preflight.gather.models import MAX_CONFIG, read_model
from engines.preflight.gather.weights import read_weights
from engines.preflight.observations import Model
from tests.support.model_files import CONFIG, write_model, write_safetensors


def read(folder: Path, **options: Any) -> Model:
    return read_model(str(folder), is_local=True, revision=None, cache=folder, **options)


def test_a_complete_model_is_read(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", tokens={"a": 0, "b": 1}, added=[("<s>", 2)], generation={"min_p": 0.05})
    model = read(folder)
    assert (model.folder, model.damage) == (str(folder), ())
    assert model.weight_bytes == 64
    assert model.tokens == {"a": 0, "b": 1, "<s>": 2}
    assert model.min_p == 0.05
    shape = model.shape
    assert (shape.vocab_size, shape.context, shape.layers, shape.attention_heads) == (3, 4096, 2, 4)
    assert (shape.kv_heads, shape.kv_values_per_token, shape.parameter_bytes) == (2, 2 * 2 * 16, 4.0)


def test_a_model_that_is_not_there_has_no_folder(tmp_path: Path) -> None:
    assert read(tmp_path / "m") == Model(name=str(tmp_path / "m"), is_local=True, folder=None)


def test_everything_that_is_missing_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert read(tmp_path / "m").damage == ("config.json is missing", "no weights (*.safetensors)")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("config.json", "{", "config.json cannot be decoded"),
        ("config.json", '{"vocab_size": "many"}', "config.json cannot be decoded"),
        ("config.json", " " * (MAX_CONFIG + 1), "config.json is larger than 4,194,304 bytes and was not read"),
        ("tokenizer.json", "[]", "tokenizer.json cannot be decoded"),
        ("model.safetensors.index.json", "{}", "model.safetensors.index.json cannot be decoded"),
    ],
)
def test_a_damaged_file_is_reported(tmp_path: Path, name: str, content: str, problem: str) -> None:
    folder = write_model(tmp_path / "m")
    (folder / name).write_text(content)
    (found,) = read(folder).damage
    assert found.startswith(problem)


def test_a_name_that_no_file_can_have_is_reported(tmp_path: Path) -> None:
    assert read(tmp_path / ("x" * 300)).damage == ("cannot be read (File name too long)",)


def test_a_unigram_vocabulary_has_its_ids_in_order(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["<unk>", 0.0], ["a", -1.5]]}}))
    assert read(folder).tokens == {"<unk>": 0, "a": 1}


def test_a_tokenizer_in_another_format_is_unknown_and_no_damage(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    assert (read(folder).tokens, read(folder).damage) == (None, ())


def test_generation_defaults_come_from_where_vllm_reads_them(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", generation={"min_p": 0.1})
    other = write_model(tmp_path / "other", generation={"min_p": 0.2})
    assert read(folder, generation_config="vllm").min_p is None
    assert read(folder, generation_config=str(other)).min_p == 0.2
    assert read(folder, generation_config=str(tmp_path)).min_p is None


def test_several_files_of_weights_are_added(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    assert read_weights(folder).size == 3 * 64


def test_weights_in_two_formats_are_counted_once(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    write_safetensors(folder / "consolidated.safetensors")
    assert read_weights(folder).size == 64


def test_a_missing_file_of_weights_is_reported(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=3)
    (folder / "model-2.safetensors").unlink()
    weights = read_weights(folder)
    assert weights.size is None
    assert weights.damage == ("1 of 3 files of weights are missing, such as model-2.safetensors",)


def test_a_link_to_a_blob_that_is_gone_is_a_missing_file(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", shards=2)
    (folder / "model-1.safetensors").unlink()
    (folder / "model-1.safetensors").symlink_to(tmp_path / "blob")
    assert "model-1.safetensors" in read_weights(folder).damage[0]


@pytest.mark.parametrize("cut", [1, 64, 70])
def test_a_file_that_was_cut_off_is_reported(tmp_path: Path, cut: int) -> None:
    folder = write_model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-cut])
    (found,) = read_weights(folder).damage
    assert ("is cut off" if cut <= 64 else "is not a safetensors file") in found


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 19) + b'{"w": {"shape": []}}'[:19],
        struct.pack("<Q", 8) + b'{"w": 1}',
    ],
)
def test_what_is_no_safetensors_file_is_reported(tmp_path: Path, content: bytes) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    assert read_weights(folder).damage == ("model.safetensors is not a safetensors file",)


def test_weights_of_pytorch_have_the_size_of_their_files(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x" * 10)
    assert read_weights(folder).size == 10


def make_cached(cache: Path, name: str, commit: str, branch: str | None = "main") -> Path:
    folder = cache / name
    if branch is not None:
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / branch).write_text(commit)
    return write_model(folder / "snapshots" / commit)


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path: Path) -> None:
    main = make_cached(tmp_path, "models--org--Llama-8B", "c1")
    branch = make_cached(tmp_path, "models--org--Llama-8B", "c2", "v2")

    def find(name: str, revision: str | None = None) -> Path | None:
        return find_model_folder(name, is_local=False, revision=revision, cache=tmp_path)

    assert find("org/Llama-8B") == main
    assert find("org/Llama-8B", "v2") == branch
    assert find("org/Llama-8B", "c1") == main
    assert find("org/Llama-8B", "v3") is None
    assert find("org/Llama-70B") is None


def test_a_ref_to_a_snapshot_that_is_gone_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "models--org--m" / "refs").mkdir(parents=True)
    (tmp_path / "models--org--m" / "refs" / "main").write_text("c1")
    assert find_model_folder("org/m", is_local=False, revision=None, cache=tmp_path) is None


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, Path("/a")),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, Path("/b/hub")),
        ({"XDG_CACHE_HOME": "/c"}, Path("/c/huggingface/hub")),
        ({}, Path.home() / ".cache" / "huggingface" / "hub"),
        ({"HF_HOME": "~/hf"}, Path.home() / "hf" / "hub"),
    ],
)
def test_the_cache_of_the_hub_is_where_its_variables_say(env: dict[str, str], folder: Path) -> None:
    assert hub_cache(env) == folder


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"head_dim": 64}, "kv_values_per_token", 2 * 2 * 64),
        ({"num_key_value_heads": None}, "kv_heads", 4),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "kv_values_per_token", 576),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, "kv_heads", 1),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "kv_layers", 1),
        ({"layer_types": ["full_attention", "full_attention"]}, "kv_layers", 2),
        ({"torch_dtype": None, "dtype": "bfloat16"}, "parameter_bytes", 2.0),
        ({"torch_dtype": None}, "parameter_bytes", None),
        ({"quantization_config": {"quant_method": "awq"}}, "is_quantized", True),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "context", 16_384),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "context", 4096),
        ({"rope_scaling": {"type": "linear", "factor": 2}, "model_type": "gemma3_text"}, "context", 4096),
        ({"num_experts": 8}, "parameters", None),
    ],
)
def test_a_configuration_determines_the_shape(fields: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(model_shape(ModelConfig(**(CONFIG | fields))), name) == value


def test_the_parameters_of_a_known_model_are_estimated_within_a_hundredth() -> None:
    llama_8b = ModelConfig(
        vocab_size=128_256, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, hidden_size=4096,
        intermediate_size=14_336,
    )  # fmt: skip
    assert model_shape(llama_8b).parameters == pytest.approx(8_030_261_248, rel=0.01)


def test_a_model_with_other_inputs_has_its_text_configuration_nested() -> None:
    shape = model_shape(ModelConfig(text_config=CONFIG, torch_dtype="bfloat16"))
    assert (shape.layers, shape.context, shape.parameter_bytes) == (2, 4096, 2.0)
