"""The command line that each setting of [engine.launch] becomes, word by word. tests/e2e asks vLLM to read them."""

import json
from typing import Any

import msgspec
import pytest

from engines.launcher import engine_command
from engines.plan import RouterSpec, UpPlan
from engines.simulator.__main__ import parse_arguments
from engines.spec import EngineSpec, LaunchSpec
from engines.vllm_command import vllm_argv, vllm_env
from router.settings.tables import LaunchSettings

BEFORE = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/Llama-3"]
BEFORE += ["--served-model-name", "org/M", "--host", "127.0.0.1", "--port", "8001"]
REPORTED = ["--per-request-spec-decode-metrics", "summary"]
ALWAYS = {"--enable-prompt-tokens-details", "--disable-uvicorn-access-log"}
ACCEPTED = ["--acceptance", "0.6", "--code-acceptance", "0.6"]


def engine(**launch: Any) -> EngineSpec:
    launched = LaunchSpec(target="org/Llama-3", **launch)
    url = "http://127.0.0.1:8001"
    return EngineSpec(name="e", model="m", task="any", url=url, served_model="org/M", launch=launched)


def words(**launch: Any) -> list[str]:
    """What the settings add to the command line."""
    argv = vllm_argv(engine(**launch), "python")
    assert argv[: len(BEFORE)] == BEFORE
    assert set(argv) >= ALWAYS
    return [word for word in argv[len(BEFORE) :] if word not in ALWAYS]


def speculation(**launch: Any) -> dict[str, Any]:
    option, config, *reported = words(**launch)
    assert option == "--speculative-config"
    assert reported == REPORTED
    decoded: dict[str, Any] = json.loads(config)
    return decoded


def test_an_engine_is_launched_with_the_settings_of_the_configuration() -> None:
    given = {field.name: field.default for field in msgspec.structs.fields(LaunchSettings)}
    assert {field.name: field.default for field in msgspec.structs.fields(LaunchSpec)} == given


@pytest.mark.parametrize(
    ("launch", "added"),
    [
        ({}, []),
        ({"tensor_parallel_size": 2}, ["--tensor-parallel-size", "2"]),
        ({"tensor_parallel_size": 1, "pipeline_parallel_size": 1}, []),
        ({"gpus": [0]}, []),
        ({"gpus": [0, 1]}, ["--tensor-parallel-size", "2"]),
        ({"gpus": [0, 1], "pipeline_parallel_size": 2}, ["--pipeline-parallel-size", "2"]),
        (
            {"gpus": [0, 1, 2, 3], "pipeline_parallel_size": 2},
            ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"],
        ),
        ({"quantization": "awq"}, ["--quantization", "awq"]),
        ({"kv_cache_dtype": "fp8"}, ["--kv-cache-dtype", "fp8"]),
        ({"gpu_memory_utilization": 0.85}, ["--gpu-memory-utilization", "0.85"]),
        ({"max_num_seqs": 32}, ["--max-num-seqs", "32"]),
        ({"max_num_batched_tokens": 4096}, ["--max-num-batched-tokens", "4096"]),
        ({"enable_prefix_caching": True}, ["--enable-prefix-caching"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"enable_chunked_prefill": True}, ["--enable-chunked-prefill"]),
        ({"enable_chunked_prefill": False}, ["--no-enable-chunked-prefill"]),
        ({"chat_template": "a b.jinja"}, ["--chat-template", "a b.jinja"]),
        (
            {"lora": {"sql": "/a,b", "law": "org/law"}, "max_lora_rank": 64},
            [
                "--enable-lora", "--max-loras", "2",
                "--lora-modules", '{"name": "sql", "path": "/a,b"}', '{"name": "law", "path": "org/law"}',
                "--max-lora-rank", "64",
            ],
        ),
        ({"speculation": "none", "draft": "org/Llama-3-s"}, []),
        ({"max_num_seqs": 32, "args": ["--max-num-seqs", "8"]}, ["--max-num-seqs", "32", "--max-num-seqs", "8"]),
    ],
)  # fmt: skip
def test_a_setting_becomes_an_option_of_vllm(launch: dict[str, Any], added: list[str]) -> None:
    assert words(**launch) == added


@pytest.mark.parametrize(
    ("launch", "config"),
    [
        (
            {"draft": "org/Llama-3-s", "num_speculative_tokens": 3},
            {"method": "draft_model", "model": "org/Llama-3-s", "num_speculative_tokens": 3},
        ),
        (
            {"draft": "Qwen/Qwen2.5-0.5B"},
            {
                "method": "draft_model", "model": "Qwen/Qwen2.5-0.5B", "num_speculative_tokens": 4,
                "use_heterogeneous_vocab": True,
            },
        ),
        (
            {"draft": "org/head", "speculation": "eagle3"},  # a part of the target, whose name says nothing
            {"method": "eagle3", "model": "org/head", "num_speculative_tokens": 4},
        ),
        ({"draft": "org/head", "speculation": "eagle"}, {
            "method": "eagle", "model": "org/head", "num_speculative_tokens": 4,
        }),
        ({"speculation": "ngram"}, {"method": "ngram", "num_speculative_tokens": 4}),
        (
            {"speculation": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5},
            {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5},
        ),
        (
            {"speculation": "ngram", "speculation_max_batch": 16},
            {
                "method": "ngram", "num_speculative_tokens": 4,
                "num_speculative_tokens_per_batch_size": [[1, 16, 4], [17, 17, 0]],
            },
        ),
    ],
)  # fmt: skip
def test_speculation_becomes_a_speculative_config(launch: dict[str, Any], config: dict[str, Any]) -> None:
    assert speculation(**launch) == config


@pytest.mark.parametrize("launch", [{"tensor_parallel_size": 2}, {"gpus": [0, 1, 2, 3], "pipeline_parallel_size": 2}])
def test_a_draft_is_divided_as_its_target_is(launch: dict[str, Any]) -> None:
    argv = words(draft="org/Llama-3-s", **launch)
    assert argv[:2] == ["--tensor-parallel-size", "2"]
    assert json.loads(argv[argv.index("--speculative-config") + 1])["draft_tensor_parallel_size"] == 2


def test_gpus_are_numbered_as_nvidia_smi_numbers_them() -> None:
    assert vllm_env(engine(gpus=[1]), cpu=False)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in vllm_env(engine(), cpu=False)


# The launcher


def launched(spec: EngineSpec, *, program: Any = "vllm") -> Any:
    router = RouterSpec(host="h", port=1, argv=[])
    plan = UpPlan(
        state="s", control_socket="s/up.sock", redis_socket=None, redis_url=None,
        router=router, kind="auto", vllm_python="python", engines=[spec],
        example_model="m",
    )  # fmt: skip
    return engine_command(spec, program, plan)


@pytest.mark.parametrize(("device", "visible"), [("cpu", ""), ("gpu", "3")])
def test_the_device_of_the_configuration_wins_over_what_this_machine_has(device: Any, visible: str) -> None:
    env = launched(engine(device=device, gpus=[3])).env
    assert env["CUDA_VISIBLE_DEVICES"] == visible
    assert ("VLLM_CPU_KVCACHE_SPACE" in env) is (device == "cpu")


@pytest.mark.parametrize(
    ("launch", "draft"),
    [
        ({}, []),
        ({"draft": "org/d"}, ["--draft", "org/d", "--num-speculative-tokens", "4", *ACCEPTED, *REPORTED]),
        ({"speculation": "ngram"}, ["--draft", "ngram", "--num-speculative-tokens", "4", *ACCEPTED, *REPORTED]),
        ({"draft": "org/d", "speculation": "none"}, []),
        ({"max_num_seqs": 3}, ["--max-num-seqs", "3"]),
    ],
)
def test_a_simulated_engine_speculates_as_the_real_one_would(launch: dict[str, Any], draft: list[str]) -> None:
    argv = launched(engine(**launch), program="simulator").argv
    plain = launched(engine(), program="simulator").argv
    assert argv == [*plain, *draft]


def test_the_requests_of_a_simulated_engine_share_its_time() -> None:
    argv = launched(engine(), program="simulator").argv
    settings = parse_arguments(argv[argv.index("engines.simulator") + 1 :]).settings
    assert settings.has_time_model
    assert settings.prefill_tokens_per_second == 4000
    assert settings.enable_prompt_tokens_details


def test_a_simulated_engine_serves_the_adapters_of_the_real_one() -> None:
    argv = launched(engine(lora={"sql": "/a"}), program="simulator").argv
    modules = argv.index("--lora-modules")
    assert argv[modules - 1 : modules + 2] == ["--enable-lora", "--lora-modules", '{"name": "sql", "path": "/a"}']
