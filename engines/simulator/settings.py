"""The configuration of one simulated engine: its model, its speed and its size."""

from dataclasses import dataclass, field, replace
from typing import Literal

from xxhash import xxh32_hexdigest

from engines.simulator.kv_cache.kv_events_config import KvEventsConfig
from engines.simulator.text.tool_script import ToolScript

VLLM_VERSION = "0.32.0"
BLOCK_SIZE = 16
"""Tokens in one KV block (vLLM's `--block-size`; its default on a GPU)."""


SpecDecodeMetricsLevel = Literal["none", "summary", "detailed"]
PoolingTask = Literal["embed", "classify"]


@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """The configuration of one simulated engine; the names are those of vLLM's options if vLLM has them.

    Raises ValueError where vLLM refuses to start: if the model length does not fit into the KV cache, or if metrics of
    a draft are requested without one.
    """

    model: str
    served_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    draft: str | None = None
    num_speculative_tokens: int = 4
    acceptance: float = 0.7
    """Probability that a draft token is accepted, given that all tokens before it in the step were."""
    code_acceptance: float | None = None
    """The same for prompts that ask for code; None: no difference."""
    per_request_spec_decode_metrics: SpecDecodeMetricsLevel = "none"
    """What responses say of the accepted draft tokens of their own request."""
    ttft: float = 0.0
    """Seconds to the first token."""
    tokens_per_second: float = 0.0
    """Steps per second of each request; 0: as fast as possible. Accepted draft tokens come on top.

    With the time model: steps per second of the engine, if there was nothing to compute in them.
    """
    prefill_tokens_per_second: float = 0.0
    """Prompt tokens that the engine computes in a second; 0: any number, at once. Of the time model."""
    decode: float = 0.0
    """Seconds that each sequence which decodes adds to a step. Of the time model."""
    max_num_batched_tokens: int | None = None
    """Tokens of prompts and sequences in one step; None: 2048, or `max_num_seqs` if that is more. Of the time model."""
    jitter: float = 0.0
    """Share (0 to 1) by which each wait varies randomly, up or down."""
    seed: int = 0
    kv_blocks: int = 4096
    max_num_seqs: int = 256
    data_parallel_size: int = 1
    """Ranks, with `kv_blocks` and `max_num_seqs` each."""
    auto_tool_choice: bool = False
    tool_script: ToolScript | None = None
    """What "auto" calls; None: always the first tool."""
    pooling: bool = False
    """Serves a pooling model (vLLM's `--runner pooling`), which generates nothing."""
    pooling_task: PoolingTask = "embed"
    """Of a pooling model: vectors and their similarity, or classes. vLLM finds it out from the model."""
    num_labels: int = 1
    """Classes of a model for classification; with one, it is a cross-encoder, which also scores pairs of texts."""
    speech: bool = False
    """Serves the audio endpoints only, as vLLM does for a model such as Whisper."""
    generations: str | None = None
    """Path of the generation log; None for none."""
    # Not in `repr`, so not in the fingerprint: in vLLM, adapters and options of the API server do not change it.
    enable_prompt_tokens_details: bool = field(default=False, repr=False)
    """Whether the usage of a response says how many prompt tokens were cached."""
    kv_events: KvEventsConfig = field(default=KvEventsConfig(), repr=False)
    server_dev_mode: bool = field(default=False, repr=False)
    """Whether the prefix cache can be reset, and the engine sleep (vLLM's VLLM_SERVER_DEV_MODE)."""
    sleep_seconds: float = field(default=0.0, repr=False)
    """How long it takes to fall asleep, once no request runs."""
    wake_seconds: float = field(default=0.0, repr=False)
    """How long it takes to wake up."""
    adapter: tuple[str, int] | None = field(default=None, repr=False)
    """Name and number of the adapter that answers; set for each request."""
    enable_scale_out: bool = field(default=False, repr=False)
    """Whether a message is made of the ids of its tokens."""
    enable_lora: bool = field(default=False, repr=False)
    lora_modules: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Name and path of the adapters that are loaded at the start."""
    allow_runtime_lora_updating: bool = field(default=False, repr=False)
    """Whether adapters can be loaded and unloaded (vLLM's VLLM_ALLOW_RUNTIME_LORA_UPDATING)."""

    def __post_init__(self) -> None:
        if self.data_parallel_size < 1:
            raise ValueError("data_parallel_size must be at least 1")
        if self.kv_blocks < 2:
            raise ValueError("a KV cache needs at least 2 blocks, since vLLM keeps one for itself")
        if self.max_num_batched_tokens is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be greater than or equal to max_num_seqs "
                f"({self.max_num_seqs})"
            )
        if self.lora_modules and not self.enable_lora:
            raise ValueError("lora_modules requires enable_lora")
        if self.per_request_spec_decode_metrics != "none" and self.draft is None:
            raise ValueError("per_request_spec_decode_metrics requires a draft")
        if self.max_model_len is not None and self.max_model_len > self.kv_tokens:
            raise ValueError(
                f"max_model_len={self.max_model_len} does not fit into {self.kv_blocks} blocks of {BLOCK_SIZE}"
            )

    @property
    def has_time_model(self) -> bool:
        """Whether the requests share the engine's time (engines/simulator/engine/steps.py)."""
        return self.prefill_tokens_per_second > 0 or self.decode > 0

    @property
    def batched_tokens(self) -> int:
        """Tokens of one step; the default is vLLM's on a small GPU."""
        return max(2048, self.max_num_seqs) if self.max_num_batched_tokens is None else self.max_num_batched_tokens

    @property
    def architecture(self) -> str:
        """The name of the model's class, which some errors have."""
        classifies = self.pooling and self.pooling_task == "classify"
        return "LlamaForSequenceClassification" if classifies else "LlamaForCausalLM"

    @property
    def scores(self) -> bool:
        """Whether the model can score pairs of texts."""
        return self.pooling and (self.pooling_task == "embed" or self.num_labels == 1)

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the KV cache; one block is never allocated."""
        return (self.kv_blocks - 1) * BLOCK_SIZE

    @property
    def context_length(self) -> int:
        """Maximum length of prompt and answer together, in tokens."""
        return min(8192, self.kv_tokens) if self.max_model_len is None else self.max_model_len

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names under which the model is served; responses contain the first one."""
        return self.served_names or (self.model,)

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`, which in vLLM is a hash of the engine's configuration."""
        # The names and the log do not change the output, so replicas that differ in them share a fingerprint.
        return f"vllm-{VLLM_VERSION}-{xxh32_hexdigest(repr(replace(self, served_names=(), generations=None)).encode())}"
