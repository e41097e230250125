"""What is read from the command line and environment of an engine."""

import json
from typing import Any

import pytest

from engines.preflight.launch_options import LaunchOptions, launch_options
from engines.spec import EngineSpec, LaunchSpec
from engines.vllm_command import vllm_argv, vllm_env


def read(*argv: str, env: dict[str, str] | None = None, on_cpu: bool = False) -> LaunchOptions:
    return launch_options(["python", "-m", "vllm", *argv], env or {}, on_cpu=on_cpu)


def test_without_options_the_defaults_of_vllm_are_in_effect() -> None:
    assert read("--model", "m") == LaunchOptions(target="m")
    assert read().memory_utilization == 0.92


def test_the_command_that_up_would_run_is_understood() -> None:
    launch = LaunchSpec(
        target="/models/t", draft="/models/d", heterogeneous_vocab=True, gpus=[2, 3],
        args=["--kv-cache-dtype", "fp8"], env={"VLLM_API_KEY": "k"},
    )  # fmt: skip
    spec = EngineSpec(
        name="e",
        model="m",
        task="any",
        url="http://127.0.0.1:8001",
        served_model="M",
        max_model_len=8192,
        launch=launch,
    )
    read_options = launch_options(vllm_argv(spec, "python"), vllm_env(spec, cpu=False), on_cpu=False)
    assert read_options == LaunchOptions(
        target="/models/t", draft="/models/d", method="draft_model", heterogeneous_vocab=True, max_model_len=8192,
        tensor_parallel=2, gpus=(2, 3), kv_cache_dtype="fp8", api_key="VLLM_API_KEY", is_offline=True,
    )  # fmt: skip
    assert read_options.gpu_count == 2


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--max-model-len", "8192"], "max_model_len", 8192),
        (["--max-model-len=8192"], "max_model_len", 8192),
        (["--max_model_len", "8192"], "max_model_len", 8192),
        (["--max-model-len", "8k"], "max_model_len", 8000),
        (["--max-model-len", "8K"], "max_model_len", 8192),
        (["--max-model-len", "-1"], "max_model_len", None),
        (["--max-model-len", "auto"], "max_model_len", None),
        (["--max-model-len", "1024", "--max-model-len", "2048"], "max_model_len", 2048),
        (["-tp", "4"], "tensor_parallel", 4),
        (["-pp=2"], "pipeline_parallel", 2),
        (["--kv-cache-memory-bytes", "128M"], "kv_cache_bytes", 128 << 20),
        (["--gpu-memory-utilization", "0.5"], "memory_utilization", 0.5),
        (["--gpu-memory-utilization", "half"], "memory_utilization", 0.92),
        (["--speculative-config", '{"method": "ngram"}'], "method", "ngram"),
        (["-sc", '{"model": "d"}'], "draft", "d"),
        (["--speculative-config", "{"], "method", None),
        (["--override-generation-config", '{"min_p": 0.1}'], "min_p", 0.1),
        (["--generation-config", "vllm"], "generation_config", "vllm"),
        (["--enforce-eager", "--quantization", "fp8"], "quantization", "fp8"),
        (["--revision", "v2"], "revision", "v2"),
        (["--api-key", "k"], "api_key", "--api-key"),
    ],
)
def test_options_are_read_in_every_form_that_vllm_takes(argv: list[str], field: str, value: Any) -> None:
    assert getattr(read(*argv), field) == value


@pytest.mark.parametrize(
    ("env", "field", "value"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1, 3"}, "gpus", (1, 3)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, "gpus", None),
        ({"VLLM_API_KEY": "k"}, "api_key", "VLLM_API_KEY"),
        ({"VLLM_API_KEY": ""}, "api_key", None),
        ({"HF_HUB_OFFLINE": "1"}, "is_offline", True),
        ({"HF_HUB_OFFLINE": "0"}, "is_offline", False),
        ({"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}, "allows_long_context", True),
    ],
)
def test_the_environment_is_read_too(env: dict[str, str], field: str, value: Any) -> None:
    assert getattr(read(env=env), field) == value


def test_on_a_cpu_the_environment_overrides_the_size_of_the_kv_cache() -> None:
    env = {"VLLM_CPU_KVCACHE_SPACE": "2", "CUDA_VISIBLE_DEVICES": ""}
    options = read("--kv-cache-memory-bytes", "1G", env=env, on_cpu=True)
    assert (options.kv_cache_bytes, options.gpus) == (2 << 30, None)
    assert read("--kv-cache-memory-bytes", "1G", env=env).kv_cache_bytes == 1 << 30


def test_the_option_for_a_key_wins_over_the_variable_as_in_vllm() -> None:
    assert read("--api-key", "a", env={"VLLM_API_KEY": "b"}).api_key == "--api-key"


def test_a_speculative_config_that_is_no_object_is_passed_over() -> None:
    assert read("--speculative-config", json.dumps([1])).method is None
