"""Profiles: settings of an engine under a name, for pairs of models that fit a given card.

An engine with `profile` has these settings unless it sets them itself. docs/running-engines.md has the memory that each
one needs.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

ProfileName = Literal["llama-chat", "llama-code", "mistral", "llama-70b-awq", "llama-70b-fp8"]

PROFILES: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama-chat": {
        "task": "chat",
        "max_model_len": 16384,
        "launch": {
            "device": "gpu",
            "target": "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
            "draft": "Qwen/Qwen2.5-0.5B-Instruct",
            "num_speculative_tokens": 4,
            "max_num_seqs": 64,
            "gpu_memory_utilization": 0.9,
        },
    },
    "llama-code": {
        "task": "code",
        "max_model_len": 16384,
        "launch": {
            "device": "gpu",
            "target": "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
            "draft": "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            "num_speculative_tokens": 5,
            "max_num_seqs": 64,
            "gpu_memory_utilization": 0.9,
        },
    },
    "mistral": {
        "max_model_len": 8192,
        "launch": {
            "device": "gpu",
            "target": "stelterlab/Mistral-Small-24B-Instruct-2501-AWQ",
            "draft": "alamios/Mistral-Small-3.1-DRAFT-0.5B",
            "num_speculative_tokens": 4,
            "max_num_seqs": 32,
            "gpu_memory_utilization": 0.9,
        },
    },
    "llama-70b-awq": {
        "max_model_len": 16384,
        "launch": {
            "device": "gpu",
            "target": "casperhansen/llama-3.3-70b-instruct-awq",
            "draft": "meta-llama/Llama-3.2-1B-Instruct",
            "num_speculative_tokens": 4,
            "tensor_parallel_size": 2,
            "max_num_seqs": 64,
            "gpu_memory_utilization": 0.9,
        },
    },
    "llama-70b-fp8": {
        "max_model_len": 32768,
        "launch": {
            "device": "gpu",
            "target": "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic",
            "draft": "meta-llama/Llama-3.2-1B-Instruct",
            "num_speculative_tokens": 4,
            "tensor_parallel_size": 2,
            "max_num_seqs": 128,
            "gpu_memory_utilization": 0.9,
        },
    },
}
"""Written as in the file. `quantization` is left out: vLLM reads it from the model and chooses the kernels itself."""

_SPECULATION: Final = frozenset({"speculation", "draft", "num_speculative_tokens"})


def with_profile(engine: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An [[engine]] as in the file, with what it does not set taken from a profile; unchanged if there is none.

    An engine that sets `speculation` chooses another method, so it does not get the profile's draft.
    """
    profile = PROFILES.get(name)
    if profile is None:
        return dict(engine)
    merged = {**engine, **{key: value for key, value in profile.items() if key not in engine}}
    launch = engine.get("launch")
    if isinstance(launch, Mapping):  # anything else is a mistake, which is reported as it stands in the file
        ignored = {*launch, *(_SPECULATION if "speculation" in launch else ())}
        merged["launch"] = {**launch, **{key: value for key, value in profile["launch"].items() if key not in ignored}}
    return merged
