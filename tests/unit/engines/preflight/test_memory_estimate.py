"""Weights and KV caches, calculated by hand."""

from typing import Any

import pytest
from msgspec.structs import replace

from engines.preflight.memory_estimate import download_bytes, estimate_memory
from engines.preflight.observations import Model, ModelShape
from tests.support.preflight_facts import GIB, LLAMA_8B, make_engine, make_model


def kv_per_token(shape: ModelShape = LLAMA_8B, **options: Any) -> int | None:
    return estimate_memory(make_engine(target=make_model(shape=shape), **options)).kv_per_token


def weights(model: Model, **options: Any) -> int | None:
    return estimate_memory(make_engine(target=model, **options)).weights


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 32 * 2 * 8 * 128 * 2),
        ({"kv_cache_dtype": "fp8_e4m3"}, 32 * 2 * 8 * 128),
        ({"dtype": "float32"}, 32 * 2 * 8 * 128 * 4),
        ({"dtype": "float32", "kv_cache_dtype": "bfloat16"}, 32 * 2 * 8 * 128 * 2),
        ({"tensor_parallel": 4}, 32 * 2 * 2 * 128 * 2),
        ({"tensor_parallel": 16}, 32 * 2 * 1 * 128 * 2),  # one of 8 KV heads for each two GPUs
        ({"pipeline_parallel": 2}, 16 * 2 * 8 * 128 * 2),
        ({"tensor_parallel": 4, "on_cpu": True}, 32 * 2 * 8 * 128 * 2),
    ],
)
def test_the_kv_cache_of_a_token(options: dict[str, Any], expected: int) -> None:
    assert kv_per_token(**options) == expected


def test_a_compressed_kv_vector_is_not_divided_among_gpus() -> None:
    latent = replace(LLAMA_8B, kv_heads=1, kv_values_per_token=576)
    assert kv_per_token(latent, tensor_parallel=8) == 32 * 576 * 2


def test_an_unknown_target_has_no_estimate_and_an_unknown_draft_is_not_counted() -> None:
    assert kv_per_token(ModelShape()) is None
    unknown = Model(name="org/draft", is_local=False, folder=None)
    estimate = estimate_memory(make_engine(draft=unknown))
    assert (estimate.weights, estimate.kv_per_token) == (None, kv_per_token())


@pytest.mark.parametrize(
    ("fields", "options", "expected"),
    [
        ({}, {}, 16),
        ({"parameter_bytes": 4.0}, {}, 8),
        ({"parameter_bytes": 4.0}, {"dtype": "float32"}, 16),
        ({}, {"quantization": "fp8"}, 8),
        ({"is_quantized": True}, {"quantization": "fp8"}, 16),
        ({}, {"tensor_parallel": 2, "pipeline_parallel": 2}, 4),
    ],
)
def test_weights_are_counted_as_vllm_loads_them(fields: dict[str, Any], options: dict[str, Any], expected: int) -> None:
    model = make_model(shape=replace(LLAMA_8B, **fields), weight_bytes=16 * GIB)
    assert weights(model, **options) == expected * GIB


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 16),
        ("Qwen/Qwen2.5-0.5B-Instruct", 1),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", 4.06),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8", 8),
        ("microsoft/phi-4", None),
        ("org8b/model", None),
        ("org/a1b2c3", None),
    ],
)
def test_the_size_of_a_download_is_guessed_from_its_name(name: str, gigabytes: float | None) -> None:
    size = download_bytes(Model(name=name, is_local=False, folder=None))
    assert size == (None if gigabytes is None else int(gigabytes * 1e9))


def test_a_configuration_tells_more_than_a_name() -> None:
    model = make_model("org/Llama-70B", replace(LLAMA_8B, parameters=8 * 10**9), weight_bytes=None)
    assert download_bytes(model) == 16 * 10**9
    estimate = estimate_memory(make_engine(target=model))
    assert (estimate.weights, estimate.is_guess) == (16 * 10**9, True)
