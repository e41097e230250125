"""What an engine is started with, read from the command line and environment that `roundhouse up` would use.

It reads the finished command and not the settings behind it, because `args` and `env` of `[engine.launch]` may override
any of them, and an option that `engines.vllm_command` adds is seen here without a change.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from engines.gpu.gpu_memory import DEFAULT_MEMORY_UTILIZATION

_ALIASES: Final = {
    "sc": "speculative-config",
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "q": "quantization",
}
_UNITS: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}  # as vLLM reads them
_BYTES_PER_GIB: Final = 1 << 30


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a vLLM server that the checks are about; None is vLLM's own default.

    - `method`: the speculative method, such as draft_model or ngram; None without speculation.
    - `gpus`: the indices in CUDA_VISIBLE_DEVICES; None if it is not set or names no indices.
    - `kv_cache_bytes`: the fixed size of the KV cache, instead of a share of the GPU's memory.
    - `api_key`: where a key is set that clients must send.
    - `generation_config`: `auto`, `vllm` or a folder; `min_p` overrides its default.
    """

    target: str
    draft: str | None = None
    method: str | None = None
    heterogeneous_vocab: bool = False
    revision: str | None = None
    max_model_len: int | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    memory_utilization: float = DEFAULT_MEMORY_UTILIZATION
    kv_cache_dtype: str = "auto"
    kv_cache_bytes: int | None = None
    dtype: str = "auto"
    quantization: str | None = None
    generation_config: str = "auto"
    min_p: float | None = None
    gpus: tuple[int, ...] | None = None
    on_cpu: bool = False
    api_key: Literal["VLLM_API_KEY", "--api-key"] | None = None
    is_offline: bool = False
    allows_long_context: bool = False

    @property
    def gpu_count(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel


def launch_options(argv: Sequence[str], env: Mapping[str, str], *, on_cpu: bool) -> LaunchOptions:
    """`env` is the engine's whole environment. An unreadable value counts as not set: vLLM rejects it."""
    options = _parse(argv)
    speculation = _json(options.get("speculative-config"))
    overrides = _json(options.get("override-generation-config"))
    draft = speculation.get("model")
    return LaunchOptions(
        target=options.get("model") or "",
        draft=draft if isinstance(draft, str) else None,
        method=str(speculation.get("method", "draft_model")) if speculation else None,
        heterogeneous_vocab=speculation.get("use_heterogeneous_vocab") is True,
        revision=options.get("revision"),
        max_model_len=_size(options.get("max-model-len")),
        tensor_parallel=_size(options.get("tensor-parallel-size")) or 1,
        pipeline_parallel=_size(options.get("pipeline-parallel-size")) or 1,
        memory_utilization=_float(options.get("gpu-memory-utilization")) or DEFAULT_MEMORY_UTILIZATION,
        kv_cache_dtype=options.get("kv-cache-dtype") or "auto",
        kv_cache_bytes=_kv_cache_bytes(options, env, on_cpu=on_cpu),
        dtype=options.get("dtype") or "auto",
        quantization=options.get("quantization"),
        generation_config=options.get("generation-config") or "auto",
        min_p=_number(overrides.get("min_p")),
        gpus=None if on_cpu else _gpu_indices(env.get("CUDA_VISIBLE_DEVICES")),
        on_cpu=on_cpu,
        api_key="--api-key" if options.get("api-key") else "VLLM_API_KEY" if env.get("VLLM_API_KEY") else None,
        is_offline=env.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
        allows_long_context=env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").lower() in ("1", "true"),
    )


def _parse(argv: Sequence[str]) -> dict[str, str]:
    """The options by name, without dashes before it and with dashes in it; of a repeated one, the last counts."""
    options = {}
    for position, argument in enumerate(argv):
        if not argument.startswith("-") or argument.strip("-") == "" or argument[1:2].isdigit():
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        if not equals and position + 1 < len(argv) and not argv[position + 1].startswith("--"):
            value = argv[position + 1]
        name = name.replace("_", "-")
        options[_ALIASES.get(name, name)] = value
    return options


def _kv_cache_bytes(options: Mapping[str, str], env: Mapping[str, str], *, on_cpu: bool) -> int | None:
    space = _float(env.get("VLLM_CPU_KVCACHE_SPACE")) if on_cpu else None
    return int(space * _BYTES_PER_GIB) if space else _size(options.get("kv-cache-memory-bytes"))


def _size(text: str | None) -> int | None:
    """128M, 1.5g or a plain number; as in vLLM, capital letters are powers of 1,024. None for 0, -1 and "auto"."""
    number = _float(text.rstrip("kmgKMG")) if text else None
    return int(number * _UNITS.get(text[-1], 1)) if text and number and number > 0 else None


def _gpu_indices(text: str | None) -> tuple[int, ...] | None:
    names = text.split(",") if text else []
    return tuple(map(int, names)) if names and all(name.strip().isdecimal() for name in names) else None


def _json(text: str | None) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return decoded if isinstance(decoded, dict) else {}


def _float(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
