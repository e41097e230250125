"""The command line of a vLLM engine, option by option."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engines.spec import EngineSpec, LaunchSpec
from engines.vllm_command import MissingLaunchError, vllm_argv, vllm_env, vocabularies_differ


def spec(launch: LaunchSpec | None = None, **fields: Any) -> EngineSpec:
    actual = {
        "name": "e",
        "model": "m",
        "task": "chat",
        "url": "http://127.0.0.1:8001",
        "served_model": "org/M",
    } | fields
    return EngineSpec(launch=launch, **actual)


def option(argv: list[str], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def speculation(argv: list[str]) -> dict[str, Any]:
    config = option(argv, "--speculative-config")
    assert config is not None
    decoded: dict[str, Any] = json.loads(config)
    return decoded


def local_model(folder: Path, vocab_size: int, tokens: dict[str, int] | None = None, added: Any = ()) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    if tokens is not None:
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": list(added)}))
    return str(folder)


def test_a_spec_is_read_from_json_and_unknown_fields_are_ignored() -> None:
    text = b"""{"name": "a", "model": "m", "task": "any", "url": "http://127.0.0.1:9", "served_model": "s",
               "max_in_flight": 3, "launch": {"target": "t", "colour": "red"}}"""
    read = msgspec.json.decode(text, type=EngineSpec)
    assert read.launch == LaunchSpec(target="t")
    assert read.max_model_len is None


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://127.0.0.1:8001", "127.0.0.1", 8001),
        ("http://[::1]:8001/", "::1", 8001),
        ("http://gpu-3.example", "gpu-3.example", 80),
        ("https://gpu-3.example", "gpu-3.example", 443),
    ],
)
def test_host_and_port_come_from_the_url(url: str, host: str, port: int) -> None:
    assert (spec(url=url).host, spec(url=url).port) == (host, port)


def test_the_server_is_started_by_module_because_the_console_script_of_the_cpu_build_fails() -> None:
    argv = vllm_argv(spec(LaunchSpec(target="/m/llama")), "/venv/bin/python")
    assert argv[:3] == ["/venv/bin/python", "-m", "vllm.entrypoints.openai.api_server"]


def test_the_engine_listens_at_the_routers_url_under_the_served_model_name() -> None:
    argv = vllm_argv(spec(LaunchSpec(target="/m/llama"), max_model_len=2048), "python")
    assert option(argv, "--model") == "/m/llama"
    assert option(argv, "--served-model-name") == "org/M"
    assert (option(argv, "--host"), option(argv, "--port")) == ("127.0.0.1", "8001")
    assert option(argv, "--max-model-len") == "2048"
    assert "--disable-uvicorn-access-log" in argv


def test_without_a_context_length_the_models_own_applies() -> None:
    assert "--max-model-len" not in vllm_argv(spec(LaunchSpec(target="/m/llama")), "python")


def test_without_a_draft_there_is_no_speculation() -> None:
    argv = vllm_argv(spec(LaunchSpec(target="/m/llama")), "python")
    assert not {"--speculative-config", "--per-request-spec-decode-metrics"} & set(argv), (
        "vLLM refuses the second alone"
    )


def test_a_draft_is_named_in_the_speculative_configuration() -> None:
    launch = LaunchSpec(target="org/Llama-3.1-8B", draft="org/Llama-3.2-1B", num_speculative_tokens=3)
    assert speculation(vllm_argv(spec(launch), "python")) == {
        "method": "draft_model",
        "model": "org/Llama-3.2-1B",
        "num_speculative_tokens": 3,
    }


@pytest.mark.parametrize("explicit", [True, False])
def test_an_explicit_vocabulary_setting_overrides_the_names(explicit: bool) -> None:
    draft = "org/Llama-3.2-1B" if explicit else "Qwen/Qwen2.5-1.5B"
    launch = LaunchSpec(target="org/Llama-3.1-8B", draft=draft, heterogeneous_vocab=explicit)
    assert speculation(vllm_argv(spec(launch), "python")).get("use_heterogeneous_vocab", False) is explicit


@pytest.mark.parametrize(
    ("target", "draft", "differ"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", False),
        ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3.2-1B", False),
        ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct", True),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-2-7b-chat", True),
        ("mistralai/Mistral-7B-Instruct-v0.3", "someone/mistral-300m", False),
        ("Qwen/Qwen2.5-14B", "Qwen/Qwen2.5-7B", False),
        ("Qwen/Qwen3-8B", "Qwen/Qwen2.5-1.5B", True),
        ("meta-llama/Llama-3.1-8B", "codellama/CodeLlama-7b", True),
    ],
)
def test_models_of_the_hub_share_a_vocabulary_within_a_family_and_major_version(
    target: str, draft: str, differ: bool
) -> None:
    assert vocabularies_differ(target, draft) is differ


def test_local_models_of_different_vocabulary_sizes_differ_whatever_their_names(tmp_path: Path) -> None:
    target = local_model(tmp_path / "llama-3", 8, {"a": 0})
    assert vocabularies_differ(target, local_model(tmp_path / "llama-3-small", 9, {"a": 0}))


def test_local_models_of_one_size_differ_when_their_tokens_do(tmp_path: Path) -> None:
    target = local_model(tmp_path / "llama", 2, {"a": 0, "b": 1})
    assert vocabularies_differ(target, local_model(tmp_path / "llama-b", 2, {"b": 0, "a": 1}))
    assert not vocabularies_differ(target, local_model(tmp_path / "qwen", 2, {"b": 1, "a": 0}))


def test_added_tokens_count_as_tokens(tmp_path: Path) -> None:
    target = local_model(tmp_path / "llama", 2, {"a": 0}, [{"content": "<s>", "id": 1}])
    assert vocabularies_differ(target, local_model(tmp_path / "llama-b", 2, {"a": 0}, [{"content": "<|s|>", "id": 1}]))


@pytest.mark.parametrize("content", ["", "[]", '{"model": 3}', '{"model": {"vocab": []}}', "{"])
def test_local_models_without_vocabulary_information_are_compared_by_their_names(tmp_path: Path, content: str) -> None:
    target = local_model(tmp_path / "llama-3.1-8b", 2, {"a": 0})
    draft = local_model(tmp_path / "llama-3.2-1b", 2)
    (tmp_path / "llama-3.2-1b" / "tokenizer.json").write_text(content)
    assert not vocabularies_differ(target, draft)
    assert vocabularies_differ(target, local_model(tmp_path / "qwen", 2))


def test_all_gpus_of_an_engine_work_together_and_so_do_its_drafts() -> None:
    argv = vllm_argv(spec(LaunchSpec(target="org/Llama-3", draft="org/Llama-3-s", gpus=[2, 3])), "python")
    assert option(argv, "--tensor-parallel-size") == "2"
    assert speculation(argv)["draft_tensor_parallel_size"] == 2


def test_options_of_the_configuration_come_last_so_that_they_override() -> None:
    argv = vllm_argv(spec(LaunchSpec(target="/m/llama", args=["--host", "0.0.0.0"])), "python")
    assert argv[-2:] == ["--host", "0.0.0.0"]


def test_an_engine_without_launch_has_no_command() -> None:
    with pytest.raises(MissingLaunchError, match="'e' has no"):
        vllm_argv(spec(), "python")
    with pytest.raises(MissingLaunchError):
        vllm_env(spec(), cpu=True)


@pytest.mark.parametrize("cpu", [True, False])
def test_an_engine_sends_no_usage_statistics(cpu: bool) -> None:
    env = vllm_env(spec(LaunchSpec(target="org/M")), cpu)
    assert (env["VLLM_NO_USAGE_STATS"], env["DO_NOT_TRACK"]) == ("1", "1")


def test_local_models_are_never_looked_up_on_the_hub(tmp_path: Path) -> None:
    local = local_model(tmp_path / "m", 2)
    assert vllm_env(spec(LaunchSpec(target=local, draft=".roundhouse/models/d")), cpu=False)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in vllm_env(spec(LaunchSpec(target=local, draft="org/draft")), cpu=False)


def test_an_engine_sees_its_gpus_or_without_any_those_of_its_launcher() -> None:
    assert vllm_env(spec(LaunchSpec(target="org/M", gpus=[1, 3])), cpu=False)["CUDA_VISIBLE_DEVICES"] == "1,3"
    assert "CUDA_VISIBLE_DEVICES" not in vllm_env(spec(LaunchSpec(target="org/M")), cpu=False)


def test_engines_on_one_cpu_are_not_bound_to_the_same_core() -> None:
    env = vllm_env(spec(LaunchSpec(target="org/M", gpus=[0])), cpu=True)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize("args", [["--kv-cache-memory-bytes", "128M"], ["--kv-cache-memory-bytes=128M"]])
def test_a_cache_size_in_bytes_is_not_replaced_by_one_in_whole_gibibytes(args: list[str]) -> None:
    assert vllm_env(spec(LaunchSpec(target="org/M")), cpu=True)["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in vllm_env(spec(LaunchSpec(target="org/M", args=args)), cpu=True)


def test_the_environment_of_the_configuration_overrides() -> None:
    env = vllm_env(spec(LaunchSpec(target="org/M", env={"VLLM_CPU_KVCACHE_SPACE": "40", "A": "b"})), cpu=True)
    assert (env["VLLM_CPU_KVCACHE_SPACE"], env["A"]) == ("40", "b")


def test_the_scheduling_policy_is_passed_only_if_it_is_set() -> None:
    launch = LaunchSpec(target="org/model")
    assert option(vllm_argv(spec(launch, scheduling="priority"), "python"), "--scheduling-policy") == "priority"
    assert "--scheduling-policy" not in vllm_argv(spec(launch), "python")


@pytest.mark.parametrize(
    ("of_router", "of_engine"),
    [
        ("tcp://127.0.0.1:5557", "tcp://*:5557"),
        ("tcp://{host}:5557", "tcp://*:5557"),
        ("tcp://[fd00::1]:5557", "tcp://*:5557"),
        ("tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("ipc:///run/llama.kv", "ipc:///run/llama.kv"),
    ],
)
def test_of_the_router_and_the_engine_one_binds_the_endpoint_of_kv_events(of_router: str, of_engine: str) -> None:
    launch = LaunchSpec(target="org/model")
    argv = vllm_argv(spec(launch, kv_events=of_router, kv_events_replay="tcp://h:5558"), "python")
    assert json.loads(option(argv, "--kv-events-config") or "") == {
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": of_engine, "replay_endpoint": "tcp://*:5558",
    }  # fmt: skip
    assert "--kv-events-config" not in vllm_argv(spec(launch), "python")


def test_an_engine_that_takes_turns_has_vllms_sleep_mode_where_there_is_a_gpu() -> None:
    sleeping = spec(LaunchSpec(target="org/M"), sleep="vllm")
    assert "--enable-sleep-mode" in vllm_argv(sleeping, "python")
    assert "--enable-sleep-mode" not in vllm_argv(sleeping, "python", cpu=True), "the CPU build refuses it"
    assert [vllm_env(sleeping, cpu)["VLLM_SERVER_DEV_MODE"] for cpu in (False, True)] == ["1", "1"]


def test_an_engine_whose_process_is_stopped_has_no_development_endpoints() -> None:
    stopped = spec(LaunchSpec(target="org/M"), sleep="process")
    assert "--enable-sleep-mode" not in vllm_argv(stopped, "python")
    assert "VLLM_SERVER_DEV_MODE" not in vllm_env(stopped, cpu=False)
