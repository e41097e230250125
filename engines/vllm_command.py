"""The command line and the environment of a vLLM OpenAI server.

It starts `python -m vllm.entrypoints.openai.api_server`, since the console script of the CPU build does not work.
"""

import json
import re
from pathlib import Path
from typing import Any

from engines.spec import EngineSpec, LaunchSpec

_KV_CACHE_OPTION = "--kv-cache-memory-bytes"
_META_PREFIX = "meta-"


class MissingLaunchError(ValueError):
    """The configuration does not contain how to start this engine."""


def vllm_argv(spec: EngineSpec, python: str, *, cpu: bool = False) -> list[str]:
    """The command that starts the engine; `python` is the interpreter that vLLM is installed in, `cpu` its CPU build.

    Reads only the configuration files of local models, to compare their vocabularies.
    Raises MissingLaunchError for a spec without `launch`.
    """
    launch = _launch(spec)
    argv = [python, "-m", "vllm.entrypoints.openai.api_server"]
    argv += ["--model", launch.target, "--served-model-name", spec.served_model]
    argv += listen_options(spec)
    argv += _option("--max-model-len", spec.max_model_len)
    argv += _option("--scheduling-policy", spec.scheduling)
    argv += kv_events_options(spec)
    argv += _launch_options(launch)
    if spec.sleep == "vllm" and not cpu:  # the CPU build refuses it; there, an engine that sleeps only stands still
        argv += ["--enable-sleep-mode"]
    if launch.speculation_method is not None:
        argv += ["--speculative-config", json.dumps(speculative_config(launch, launch.speculation_method))]
        # The router learns from it what the draft is worth; without a draft, vLLM refuses the option.
        argv += ["--per-request-spec-decode-metrics", "summary"]
    # The router compares it with what it believes of the engine's prefix cache. The last of several options counts for
    # vLLM, so `args` can turn it off.
    argv += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
    return argv + list(launch.args)


def listen_options(spec: EngineSpec) -> list[str]:
    """Of an engine on a Ray cluster, its node adds them: only there is known which port is free."""
    return [] if spec.is_placed_by_ray else ["--host", spec.host, "--port", str(spec.port)]


def kv_events_options(spec: EngineSpec) -> list[str]:
    """Where the engine publishes KV events: at the other side of what the router's setting says.

    vLLM binds an endpoint with `*` and one of ipc, and connects to others; of the two sides, one must bind.
    """
    if spec.kv_events is None:
        return []
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": _engine_side(spec.kv_events)}
    if spec.kv_events_replay is not None:
        config["replay_endpoint"] = _engine_side(spec.kv_events_replay)
    return ["--kv-events-config", json.dumps(config)]


def _engine_side(endpoint: str) -> str:
    scheme, _, rest = endpoint.partition("://")
    host, _, port = rest.rpartition(":")
    if scheme != "tcp":
        return endpoint
    return f"tcp://127.0.0.1:{port}" if host == "*" else f"tcp://*:{port}"


def vllm_env(spec: EngineSpec, cpu: bool) -> dict[str, str]:
    """Environment variables for the engine in addition to the launcher's own; `cpu`: for vLLM's CPU build.

    On a CPU, vLLM binds each engine's threads to cores of its own choice, the same ones for every engine on the
    machine; several engines then compete for one core. So binding is turned off.
    Raises MissingLaunchError for a spec without `launch`.
    """
    launch = _launch(spec)
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "TOKENIZERS_PARALLELISM": "false"}
    if all(is_local_model(model) for model in (launch.target, launch.draft) if model is not None):
        env |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if cpu:
        env |= {"CUDA_VISIBLE_DEVICES": "", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        # In whole GiB, allocated at the start. If set, it overrides the option, which allows less than 1 GiB.
        if not any(argument.partition("=")[0] == _KV_CACHE_OPTION for argument in launch.args):
            env["VLLM_CPU_KVCACHE_SPACE"] = "1"
    elif launch.gpus:
        # By default, CUDA numbers GPUs by speed. nvidia-smi numbers them by PCI slot, and so does the configuration.
        env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, launch.gpus))}
    if spec.sleep == "vllm":
        env["VLLM_SERVER_DEV_MODE"] = "1"  # only then has it /sleep and /wake_up
    return env | launch.env


def _launch_options(launch: LaunchSpec) -> list[str]:
    options = []
    for name, size in (
        ("--tensor-parallel-size", launch.tensor_parallel),
        ("--pipeline-parallel-size", launch.pipeline_parallel_size),
    ):
        options += _option(name, size if size > 1 else None)
    options += _option("--quantization", launch.quantization)
    options += _option("--kv-cache-dtype", launch.kv_cache_dtype)
    options += _option("--gpu-memory-utilization", launch.gpu_memory_utilization)
    options += _option("--max-num-seqs", launch.max_num_seqs)
    options += _option("--max-num-batched-tokens", launch.max_num_batched_tokens)
    options += _switch("enable-prefix-caching", launch.enable_prefix_caching)
    options += _switch("enable-chunked-prefill", launch.enable_chunked_prefill)
    options += _option("--chat-template", launch.chat_template)
    if launch.lora:
        # A batch may use every adapter.
        options += ["--enable-lora", "--max-loras", str(len(launch.lora)), "--lora-modules", *lora_modules(launch)]
        options += _option("--max-lora-rank", launch.max_lora_rank)
    return options


def lora_modules(launch: LaunchSpec) -> list[str]:
    # As JSON, since vLLM reads name=path only if there is no comma in it.
    return [json.dumps({"name": name, "path": path}) for name, path in launch.lora.items()]


def _option(name: str, value: str | float | None) -> list[str]:
    return [] if value is None else [name, str(value)]


def _switch(name: str, on: bool | None) -> list[str]:
    return [] if on is None else [f"--{name}" if on else f"--no-{name}"]


def speculative_config(launch: LaunchSpec, method: str) -> dict[str, Any]:
    """The value of `--speculative-config`; its keys are the fields of vLLM's SpeculativeConfig."""
    drafted = launch.num_speculative_tokens
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": drafted}
    if launch.draft is not None:
        config["model"] = launch.draft
        if launch.tensor_parallel > 1:
            config["draft_tensor_parallel_size"] = launch.tensor_parallel
    if method == "draft_model" and launch.draft is not None:
        differ = launch.heterogeneous_vocab
        if differ is None:
            differ = vocabularies_differ(launch.target, launch.draft)
        if differ:
            config["use_heterogeneous_vocab"] = True
    if method == "ngram":
        lookups = {"prompt_lookup_min": launch.prompt_lookup_min, "prompt_lookup_max": launch.prompt_lookup_max}
        config |= {name: tokens for name, tokens in lookups.items() if tokens is not None}
    if (most := launch.speculation_max_batch) is not None:
        # Ranges of batch sizes with the tokens to propose; vLLM continues the last one to all larger batches.
        config["num_speculative_tokens_per_batch_size"] = [[1, most, drafted], [most + 1, most + 1, 0]]
    return config


def vocabularies_differ(target: str, draft: str) -> bool:
    """Whether draft tokens need translation: by the files of local models, else by the model family in the names.

    vLLM treats two models as sharing a vocabulary if their `vocab_size` is equal; two models of equal size but with
    other tokens would never agree. A family is the word and the major version that a name starts with, as in
    Llama-3.1-8B and Llama-3.2-1B. If a name is misleading, set `heterogeneous_vocab` in the configuration.
    """
    if is_local_model(target) and is_local_model(draft):
        sizes = (_vocab_size(Path(target)), _vocab_size(Path(draft)))
        tokens = (_token_ids(Path(target)), _token_ids(Path(draft)))
        if None not in sizes and sizes[0] != sizes[1]:
            return True
        if None not in tokens:
            return tokens[0] != tokens[1]
    return _model_family(target) != _model_family(draft)


def is_local_model(model: str) -> bool:
    """Whether a model is a folder, existing or not, rather than a name on the hub."""
    return model.startswith(("/", ".", "~")) or Path(model).is_dir()


def _launch(spec: EngineSpec) -> LaunchSpec:
    if spec.launch is None:
        raise MissingLaunchError(f"engine {spec.name!r} has no [engine.launch]; it must be started separately")
    return spec.launch


def _vocab_size(folder: Path) -> int | None:
    size = _read_json(folder / "config.json").get("vocab_size")
    return size if isinstance(size, int) else None


def _token_ids(folder: Path) -> dict[str, int] | None:
    """Token ids by spelling, added tokens included; None without a usable tokenizer.json."""
    tokenizer = _read_json(folder / "tokenizer.json")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        return None
    return vocabulary | {added["content"]: added["id"] for added in tokenizer.get("added_tokens") or []}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _model_family(model: str) -> tuple[str, str]:
    """The word and major version that a model's name starts with: ("llama", "3") for Llama-3.1-8B-Instruct."""
    name = model.rstrip("/").rpartition("/")[2].lower().removeprefix(_META_PREFIX)
    words = re.split(r"[-_]", name)
    start = re.match(r"([a-z]*)([\d.]*)", words[0])
    word, version = start.groups() if start is not None else (words[0], "")
    if not version and len(words) > 1 and re.fullmatch(r"\d+(\.\d+)?", words[1]):
        version = words[1]
    return word, version.partition(".")[0]
