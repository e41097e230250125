"""How much memory an engine needs: an estimate from the files and configurations of its models.

Weights are the bytes of their files, divided by the number of GPUs. The KV cache keeps, per token and layer, a key and
a value for each KV head: 2 * layers * kv_heads * head_dim * bytes of a value. With speculative decoding, the draft has
weights and a KV cache of its own. Everything else (CUDA context, activations, CUDA graphs) is `RUNTIME_BYTES`.
"""

import math
import re
from typing import Final

import msgspec

from engines.preflight.launch_options import LaunchOptions
from engines.preflight.observations import EngineFacts, Model

RUNTIME_BYTES: Final = 2 << 30
"""Per GPU: an allowance, since it depends on the GPU, the batch size and the attention backend."""

_KV_BYTES: Final = (("fp8", 1.0), ("int8", 1.0), ("nvfp4", 0.5625), ("int4", 0.5625), ("float32", 4.0))
"""Bytes of a cached value by the beginning of --kv-cache-dtype; 4-bit formats also store scales."""

_DEFAULT_VALUE_BYTES: Final = 2.0
_LOADED_BYTES: Final = {"fp8": 1.0, "bitsandbytes": 0.55}  # of weights that vLLM quantizes while it loads them
_NAME_SIZE: Final = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)b(?![a-z0-9])")
_NAME_BYTES: Final = ((r"awq|gptq|int4|4bit|w4a16|nvfp4", 0.58), (r"fp8|int8|8bit|w8a8", 1.0))


class MemoryEstimate(msgspec.Struct, frozen=True):
    """Bytes per GPU, or of the whole engine on a CPU; None is unknown.

    `is_guess`: the weights are not on this machine, and their size is estimated from the configuration or the name.
    """

    weights: int | None
    kv_per_token: int | None
    is_guess: bool


def estimate_memory(engine: EngineFacts) -> MemoryEstimate:
    options = engine.options
    models = [model for model in (engine.target, engine.draft) if model is not None]
    sizes = [_loaded_bytes(model, options if model is engine.target else None) for model in models]
    per_token = [_kv_per_token(model, options) for model in models]
    divisor = 1 if options.on_cpu else options.gpu_count
    return MemoryEstimate(
        weights=None if None in sizes else math.ceil(sum(size or 0 for size in sizes) / divisor),
        # The cache of an unknown draft counts as nothing: it is small, and what does not fit without it does not fit.
        kv_per_token=None if per_token[0] is None else sum(value or 0 for value in per_token),
        is_guess=any(model.weight_bytes is None for model in models),
    )


def download_bytes(model: Model) -> int | None:
    """The size of a model's files: as they are, else by its configuration, else by a number such as 8B in its name."""
    if model.weight_bytes is not None:
        return model.weight_bytes
    if model.shape.parameters is not None:
        return int(model.shape.parameters * (model.shape.parameter_bytes or _DEFAULT_VALUE_BYTES))
    name = model.name.rstrip("/").rpartition("/")[2].lower()
    size = _NAME_SIZE.search(name)
    if size is None:
        return None
    bytes_each = next((value for pattern, value in _NAME_BYTES if re.search(pattern, name)), _DEFAULT_VALUE_BYTES)
    return int(float(size[1]) * 1e9 * bytes_each)


def _loaded_bytes(model: Model, options: LaunchOptions | None) -> int | None:
    """The bytes of the weights in memory; `options` if they apply to this model, as they do to the target."""
    stored = download_bytes(model)
    if stored is None or model.shape.is_quantized:
        return stored
    stored_each = model.shape.parameter_bytes or _DEFAULT_VALUE_BYTES
    dtype = options.dtype if options is not None else "auto"
    loaded_each = stored_each if dtype == "float32" else min(stored_each, _DEFAULT_VALUE_BYTES)
    if options is not None and options.quantization is not None:
        loaded_each = min(loaded_each, _LOADED_BYTES.get(options.quantization, loaded_each))
    return int(stored * loaded_each / stored_each)


def _kv_per_token(model: Model, options: LaunchOptions) -> int | None:
    shape = model.shape
    if shape.kv_layers is None or shape.kv_values_per_token is None or not shape.kv_heads:
        return None
    kv_dtype = options.dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype
    value_bytes = next((size for name, size in _KV_BYTES if kv_dtype.startswith(name)), _DEFAULT_VALUE_BYTES)
    if options.on_cpu:
        return math.ceil(shape.kv_layers * shape.kv_values_per_token * value_bytes)
    # A KV head is not split: with more GPUs than KV heads, each GPU keeps one.
    heads = math.ceil(shape.kv_heads / options.tensor_parallel)
    layers = math.ceil(shape.kv_layers / options.pipeline_parallel)
    return math.ceil(layers * shape.kv_values_per_token / shape.kv_heads * heads * value_bytes)
