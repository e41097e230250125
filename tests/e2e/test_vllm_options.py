"""vLLM's own parser and configuration read every option that `engines.vllm_command` writes, and every profile.

Nothing is loaded: models are folders with a config.json, so this says nothing about what runs on a GPU.
"""

import json
import os
import subprocess
from typing import Any, NamedTuple, get_args

import msgspec
import pytest

from engines.placement.ray_request import RAY_EXECUTOR
from engines.spec import EngineSpec, LaunchSpec
from engines.vllm_command import vllm_argv
from router.settings import parse
from router.settings.profiles import PROFILES, ProfileName
from router.settings.tables import LaunchSettings

pytestmark = pytest.mark.vllm

READ = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())

def read(argv, as_configured):
    arguments = parser.parse_args(argv)
    validate_parsed_serve_args(arguments)
    engine = AsyncEngineArgs.from_cli_args(arguments)
    if engine.quantization not in (None, *QUANTIZATION_METHODS):
        raise ValueError(engine.quantization)  # the parser takes any; vLLM raises this when it reads the model
    if not as_configured:
        return vars(arguments) | vars(engine)
    config = engine.create_engine_config()
    return vars(config.speculative_config)

def plain(value):
    return vars(value) if type(value).__name__ == "LoRAModulePath" else repr(value)

with open(sys.argv[1]) as file:
    commands = json.load(file)
results = []
for argv, as_configured in commands:
    try:
        results.append(read(argv, as_configured))
    except (Exception, SystemExit) as error:
        results.append({"error": f"{type(error).__name__}: {error}"})
with open(sys.argv[2], "w") as file:
    json.dump(results, file, default=plain)
"""

MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}  # fmt: skip


class Case(NamedTuple):
    """Settings of a launch, and what vLLM must read from the command line that they become.

    With `as_configured`, `read` is compared with the SpeculativeConfig that vLLM makes, else with its arguments.
    TARGET, DRAFT, FOREIGN (a draft with another vocabulary) and TEMPLATE stand for files.
    """

    launch: dict[str, Any]
    read: dict[str, Any]
    as_configured: bool = False


def choices(name: str) -> list[Any]:
    """The values that a setting allows."""
    (field,) = [field for field in msgspec.structs.fields(LaunchSettings) if field.name == name]
    return [value for option in get_args(field.type) for value in get_args(option)]


OPTIONS = [
    Case({}, {"model": "TARGET", "served_model_name": ["org/M"], "host": "127.0.0.1", "port": 8001}),
    Case({}, {"max_model_len": 2048, "disable_uvicorn_access_log": True, "speculative_config": None}),
    Case({"tensor_parallel_size": 2}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}),
    Case({"gpus": [0, 1]}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 1}),
    Case({"gpus": [0, 1, 2, 3], "pipeline_parallel_size": 2}, {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    *(Case({"quantization": name}, {"quantization": name}) for name in choices("quantization")),
    *(Case({"kv_cache_dtype": name}, {"kv_cache_dtype": name}) for name in choices("kv_cache_dtype")),
    Case({"gpu_memory_utilization": 0.85}, {"gpu_memory_utilization": 0.85}),
    Case({"max_num_seqs": 3}, {"max_num_seqs": 3}),
    Case({"max_num_batched_tokens": 4097}, {"max_num_batched_tokens": 4097}),
    *(Case({"enable_prefix_caching": on}, {"enable_prefix_caching": on}) for on in (True, False)),
    *(Case({"enable_chunked_prefill": on}, {"enable_chunked_prefill": on}) for on in (True, False)),
    Case({"chat_template": "TEMPLATE"}, {"chat_template": "TEMPLATE"}),
    Case({"lora": {"sql": "/a,b", "c": "d=e"}}, {"enable_lora": True, "max_loras": 2}),
    *(
        Case({"lora": {"sql": "/a"}, "max_lora_rank": rank}, {"enable_lora": True, "max_lora_rank": rank})
        for rank in choices("max_lora_rank")
    ),
    Case({"args": ["--seed", "7", "--max-model-len", "64"]}, {"seed": 7, "max_model_len": 64}),
    Case({"draft": "DRAFT", "speculation": "none"}, {"speculative_config": None}),
    Case({}, {"per_request_spec_decode_metrics": "none"}),
    Case({"draft": "DRAFT"}, {"per_request_spec_decode_metrics": "summary"}),
    Case({"speculation": "ngram"}, {"per_request_spec_decode_metrics": "summary"}),
    Case({}, {"enable_prompt_tokens_details": True}),
    Case({"args": ["--no-enable-prompt-tokens-details"]}, {"enable_prompt_tokens_details": False}),
    Case({"args": [*RAY_EXECUTOR]}, {"distributed_executor_backend": "ray"}),  # engines.placement.ray_driver adds it
]

SPECULATION = [
    Case({"draft": "DRAFT"}, {"method": "draft_model", "model": "DRAFT", "num_speculative_tokens": 4}),
    Case({"draft": "DRAFT"}, {"use_heterogeneous_vocab": False}),
    Case({"draft": "DRAFT", "num_speculative_tokens": 2}, {"num_speculative_tokens": 2}),
    Case({"draft": "FOREIGN"}, {"use_heterogeneous_vocab": True}),
    Case({"draft": "DRAFT", "heterogeneous_vocab": True}, {"use_heterogeneous_vocab": True}),
    Case({"speculation": "ngram"}, {"method": "ngram", "prompt_lookup_max": 5, "num_speculative_tokens": 4}),
    Case(
        {"speculation": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3},
        {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 3},
    ),
    Case({"speculation": "eagle", "draft": "DRAFT"}, {"method": "eagle", "use_heterogeneous_vocab": False}),
    Case({"speculation": "eagle3", "draft": "DRAFT"}, {"method": "eagle3"}),
    *(
        Case(
            {**launch, "speculation_max_batch": 8, "max_num_seqs": 64},
            {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 9, 0]]},
        )
        for launch in ({"draft": "DRAFT"}, {"draft": "FOREIGN"}, {"speculation": "ngram"})
    ),
]

REFUSED = [
    Case({"draft": "FOREIGN", "heterogeneous_vocab": False}, {}, as_configured=True),
    Case({"args": ["--speculative-model", "DRAFT"]}, {}),
    Case({"kv_cache_dtype": "fp9"}, {}),
    Case({"quantization": "awk"}, {}),
]
"""What vLLM must refuse, or the tests above would pass whatever it reads."""

CASES = [*OPTIONS, *(case._replace(as_configured=True) for case in SPECULATION)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    paths = {"TARGET": "llama-8b", "DRAFT": "llama-1b", "FOREIGN": "qwen-1b", "TEMPLATE": "template.jinja"}
    for name, vocab_size in (("TARGET", 256), ("DRAFT", 256), ("FOREIGN", 300)):
        (folder / paths[name]).mkdir()
        (folder / paths[name] / "config.json").write_text(json.dumps(MODEL | {"vocab_size": vocab_size}))
    (folder / paths["TEMPLATE"]).write_text("{{ messages }}")
    return {name: str(folder / path) for name, path in paths.items()}


def filled(value: Any, files: dict[str, str]) -> Any:
    """The value with the paths of files in place of their names."""
    if isinstance(value, dict):
        return {name: filled(item, files) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, files) for item in value]
    return files.get(value, value) if isinstance(value, str) else value


def command(launch: dict[str, Any], files: dict[str, str]) -> list[str]:
    spec = EngineSpec(
        name="e", model="m", task="any", url="http://127.0.0.1:8001", served_model="org/M", max_model_len=2048,
        launch=msgspec.convert({"target": files["TARGET"], **filled(launch, files)}, LaunchSpec),
    )  # fmt: skip
    return vllm_argv(spec, "python")


def profile_spec(name: str) -> EngineSpec:
    text = f'[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://h:1"\nprofile = "{name}"\n'
    (engine,) = parse(text, {}).engine
    return msgspec.convert(msgspec.to_builtins(engine) | {"served_model": "m", "revision": ""}, EngineSpec)


def stand_in(spec: EngineSpec, files: dict[str, str]) -> EngineSpec:
    """The engine with folders in place of models of the hub; the draft's vocabulary is another if the real one's is."""
    assert spec.launch is not None
    is_foreign = any("use_heterogeneous_vocab" in word for word in vllm_argv(spec, "python"))
    draft = files["FOREIGN" if is_foreign else "DRAFT"]
    launch = msgspec.structs.replace(spec.launch, target=files["TARGET"], draft=draft)
    return msgspec.structs.replace(spec, launch=launch)


Results = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def results(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What vLLM reads from each command, by its key; in one process, since importing vLLM takes half a minute."""
    commands = {str(case): (command(case.launch, files), case.as_configured) for case in [*CASES, *REFUSED]}
    for name in PROFILES:
        commands[name] = (vllm_argv(profile_spec(name), "python"), False)
        commands[f"{name}, configured"] = (vllm_argv(stand_in(profile_spec(name), files), "python"), True)
    folder = tmp_path_factory.mktemp("commands")
    wanted, read = folder / "commands.json", folder / "read.json"
    wanted.write_text(json.dumps([(argv[3:], as_configured) for argv, as_configured in commands.values()]))
    # Not offline: vLLM would then look for the profiles' models in the local cache, before it looks at the options.
    subprocess.run(
        [os.environ["ROUNDHOUSE_VLLM_PYTHON"], "-c", READ, str(wanted), str(read)],
        check=True, timeout=1200, cwd=folder, stdout=subprocess.DEVNULL,
        env={**os.environ, "HF_HUB_OFFLINE": "0", "VLLM_LOGGING_LEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    return dict(zip(commands, json.loads(read.read_text()), strict=True))


def test_every_setting_of_a_launch_is_tried_here() -> None:
    tried = {name for case in CASES for name in case.launch} | {"target"}
    not_options = {"device", "env", "placement", "resources"}  # the environment, and what Ray reads
    assert tried == set(LaunchSpec.__struct_fields__) - not_options


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case.launch))
def test_vllm_reads_what_the_settings_say(case: Case, files: dict[str, str], results: Results) -> None:
    read = results[str(case)]
    assert "error" not in read, read
    assert {name: read[name] for name in case.read} == filled(case.read, files)


def test_vllm_reads_adapters_whatever_is_in_their_paths(results: Results) -> None:
    (case,) = [case for case in CASES if len(case.launch.get("lora", {})) == 2]
    read = [(adapter["name"], adapter["path"]) for adapter in results[str(case)]["lora_modules"]]
    assert read == list(case.launch["lora"].items())


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: json.dumps(case.launch))
def test_vllm_refuses_what_it_does_not_know(case: Case, results: Results) -> None:
    assert "error" in results[str(case)]


@pytest.mark.parametrize("name", get_args(ProfileName))
def test_vllm_reads_the_profile(name: str, results: Results) -> None:
    spec, read = profile_spec(name), results[name]
    assert spec.launch is not None
    assert "error" not in read, read
    wanted: dict[str, Any] = {"model": spec.launch.target, "max_model_len": spec.max_model_len}
    wanted |= {name: getattr(spec.launch, name) for name in ("max_num_seqs", "gpu_memory_utilization")}
    assert {option: read[option] for option in wanted} == wanted
    assert read["tensor_parallel_size"] == spec.launch.tensor_parallel
    assert read["speculative_config"]["model"] == spec.launch.draft


@pytest.mark.parametrize("name", get_args(ProfileName))
def test_vllm_makes_a_configuration_of_the_profile(name: str, results: Results) -> None:
    spec, made = profile_spec(name), results[f"{name}, configured"]
    assert spec.launch is not None
    assert "error" not in made, made
    assert (made["method"], made["num_speculative_tokens"]) == ("draft_model", spec.launch.num_speculative_tokens)
    assert made["use_heterogeneous_vocab"] is name.startswith(("llama-chat", "llama-code"))
    assert made["draft_tensor_parallel_size"] == spec.launch.tensor_parallel
