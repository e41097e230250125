"""What of a config.json determines a model's memory and context."""

from typing import Any, Final

import msgspec

from engines.preflight.observations import ModelShape

_DTYPE_BYTES: Final = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "float8_e4m3fn": 1.0, "float8_e5m2": 1.0}
# With these, max_position_embeddings already includes the factor. Source: _get_and_verify_max_len of vLLM 0.32.
_SCALED_ROPE: Final = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "default")
_FULL_ATTENTION: Final = "full_attention"


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of config.json, under the names of Transformers; a model with other inputs nests them for its text."""

    text_config: dict[str, Any] | None = None
    model_type: str = ""
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    tie_word_embeddings: bool = False
    num_local_experts: int | None = None
    num_experts: int | None = None
    n_routed_experts: int | None = None
    layer_types: list[str] | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    torch_dtype: Any = None
    dtype: Any = None
    quantization_config: Any = None
    rope_scaling: Any = None
    rope_parameters: Any = None


def model_shape(config: ModelConfig) -> ModelShape:
    dtype = config.torch_dtype or config.dtype
    is_quantized = config.quantization_config is not None
    if config.text_config is not None and config.num_hidden_layers is None:
        try:
            config = msgspec.convert(config.text_config, ModelConfig)
        except msgspec.ValidationError:
            return ModelShape(is_quantized=is_quantized)
    kv_heads = 1 if config.kv_lora_rank else config.num_key_value_heads or config.num_attention_heads
    return ModelShape(
        vocab_size=config.vocab_size,
        context=_context(config),
        layers=config.num_hidden_layers,
        kv_layers=_kv_layers(config),
        parameters=_parameters(config),
        attention_heads=config.num_attention_heads,
        kv_heads=kv_heads,
        kv_values_per_token=_kv_values(config, kv_heads),
        parameter_bytes=_DTYPE_BYTES.get(str(dtype or config.torch_dtype or config.dtype).removeprefix("torch.")),
        is_quantized=is_quantized or config.quantization_config is not None,
    )


def _kv_layers(config: ModelConfig) -> int | None:
    """The layers that keep keys and values of the whole context; others keep a window or a state of fixed size."""
    if config.layer_types is None:
        return config.num_hidden_layers
    return config.layer_types.count(_FULL_ATTENTION) or config.num_hidden_layers


def _parameters(config: ModelConfig) -> int | None:
    """The number of weights of a dense decoder with gated feed-forward layers; None for a mixture of experts."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.num_local_experts or config.num_experts or config.n_routed_experts:
        return None
    if not (hidden and heads and config.num_hidden_layers and config.intermediate_size and config.vocab_size):
        return None
    head_dim = config.head_dim or hidden // heads
    attention = 2 * hidden * head_dim * (heads + (config.num_key_value_heads or heads))
    feed_forward = 3 * hidden * config.intermediate_size
    embeddings = (1 if config.tie_word_embeddings else 2) * config.vocab_size * hidden
    return embeddings + config.num_hidden_layers * (attention + feed_forward)


def _kv_values(config: ModelConfig, kv_heads: int | None) -> int | None:
    if config.kv_lora_rank:  # MLA keeps one compressed vector per token instead of keys and values
        return config.kv_lora_rank + (config.qk_rope_head_dim or 0)
    head_dim = config.head_dim
    if head_dim is None and config.hidden_size and config.num_attention_heads:
        head_dim = config.hidden_size // config.num_attention_heads
    return 2 * kv_heads * head_dim if kv_heads and head_dim else None


def _context(config: ModelConfig) -> int | None:
    """The longest context in tokens, as vLLM derives it."""
    rope = config.rope_scaling if isinstance(config.rope_scaling, dict) else config.rope_parameters
    if config.max_position_embeddings is None or not isinstance(rope, dict) or "gemma3" in config.model_type:
        return config.max_position_embeddings
    factor = rope.get("factor")
    if rope.get("rope_type", rope.get("type")) in _SCALED_ROPE or not isinstance(factor, int | float):
        return config.max_position_embeddings
    return int(config.max_position_embeddings * factor)
