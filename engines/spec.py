"""One engine of the configuration and how to start it, which the router's command line passes in JSON."""

from collections.abc import Iterable
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from router.core.types import EngineTask


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an engine: `[engine.launch]` of the configuration.

    `target` and `draft` are folders or names on the Hugging Face hub. `gpus` are indices as in CUDA_VISIBLE_DEVICES.
    `lora` has the path of each adapter by its name. `speculation` is the method, by default draft_model if there is a
    draft; in steps with more than `speculation_max_batch` requests no tokens are proposed. `heterogeneous_vocab` states
    whether target and draft have different vocabularies; None leaves that to
    `engines.vllm_command.vocabularies_differ`. `args` are further options of vLLM's server and override those of
    `engines.vllm_command`; `env` overrides its environment. `placement` is this machine or a Ray cluster, `resources`
    are Ray's, in addition to one CPU and the GPUs. The rest is named as in vLLM, and None leaves it to vLLM.
    """

    target: str
    device: Literal["auto", "cpu", "gpu"] = "auto"
    placement: Literal["local", "ray"] = "local"
    resources: dict[str, float] = {}
    gpus: list[int] = []
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    gpu_memory_utilization: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    chat_template: str | None = None
    lora: dict[str, str] = {}
    max_lora_rank: int | None = None
    speculation: Literal["draft_model", "ngram", "eagle", "eagle3", "none"] | None = None
    draft: str | None = None
    num_speculative_tokens: int = 4
    speculation_max_batch: int | None = None
    heterogeneous_vocab: bool | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    args: list[str] = []
    env: dict[str, str] = {}

    @property
    def speculation_method(self) -> str | None:
        """The method of speculative decoding; None for none."""
        if self.speculation is None:
            return "draft_model" if self.draft is not None else None
        return None if self.speculation == "none" else self.speculation

    @property
    def tensor_parallel(self) -> int:
        """The number of GPUs of each pipeline stage: if it is not set, all GPUs are used."""
        return self.tensor_parallel_size or max(1, len(self.gpus) // self.pipeline_parallel_size)


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine of the configuration; unknown fields are ignored, so that the router may send more than is needed.

    `model` is the public name, `served_model` the name that the engine itself uses, `task` is chat, code or any,
    `max_model_len` the context in tokens (None: the model's own), `max_in_flight` the most requests at a time that
    routers send, `scheduling` vLLM's --scheduling-policy, `kv_events` and `kv_events_replay` where
    routers read its KV events. `revision` and `fallback` are the model's in the
    configuration. Without `launch` the engine is started elsewhere. `url` is empty if the engine is placed by Ray,
    which decides it. `sleep` says how it sleeps while others have its GPU: by vLLM's sleep mode at `sleep_level`, or
    its process is stopped; None if it shares none.
    """

    name: str
    model: str
    task: EngineTask
    url: str
    served_model: str
    max_model_len: int | None = None
    max_in_flight: int | None = None
    scheduling: Literal["fcfs", "priority"] | None = None
    kv_events: str | None = None
    kv_events_replay: str | None = None
    revision: str = ""
    fallback: str | None = None
    sleep: Literal["vllm", "process"] | None = None
    sleep_level: int = 1
    launch: LaunchSpec | None = None

    @property
    def is_placed_by_ray(self) -> bool:
        return self.launch is not None and self.launch.placement == "ray"

    @property
    def listens_here(self) -> bool:
        """Whether `roundhouse up` starts it on this machine."""
        return self.launch is not None and not self.is_placed_by_ray

    @property
    def host(self) -> str:
        """Where the engine listens; loopback if the URL names no host."""
        return urlsplit(self.url).hostname or "127.0.0.1"

    @property
    def port(self) -> int:
        """The port of the URL, or the default of its scheme; raises ValueError if the port is invalid."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Engines that take turns at a GPU: `[[gpu]]` of the configuration.

    `engines`: how much of the `capacity` each one needs while it is awake, by name, in their order: bytes if it is
    shared `by_memory`, else 1 each.
    """

    name: str
    engines: dict[str, float]
    capacity: float
    by_memory: bool = False

    def first(self, engines: Iterable[str]) -> list[str]:
        """Those of `engines`, in the order of the group, that there is room for."""
        wanted, room, found = set(engines), self.capacity, []
        for name, need in self.engines.items():
            if name in wanted and need <= room:
                room -= need
                found.append(name)
        return found
