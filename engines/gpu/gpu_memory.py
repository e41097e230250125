"""A start that failed because the GPU had too little free memory, and the command line for one more try."""

import re
from collections.abc import Sequence
from typing import Final

_OPTION: Final = "--gpu-memory-utilization"
DEFAULT_MEMORY_UTILIZATION: Final = 0.92
"""vLLM 0.32, EngineArgs.gpu_memory_utilization."""

_STEP: Final = 0.1
_LEAST: Final = 0.3

# vLLM's other message, "No available memory for the cache blocks", asks for a higher utilization, not a lower one.
_OUT_OF_MEMORY: Final = re.compile(
    r"CUDA out of memory|HIP out of memory|is less than desired GPU memory utilization", re.IGNORECASE
)


def is_out_of_memory(log: str) -> bool:
    """Whether this log of an engine that failed to start says that the GPU has too little free memory."""
    return _OUT_OF_MEMORY.search(log) is not None


def with_less_memory(argv: Sequence[str]) -> list[str] | None:
    """vLLM's command line with a tenth less of the GPU's memory; None if it cannot do with less.

    The last of several options counts, as in vLLM's parser.
    """
    used = DEFAULT_MEMORY_UTILIZATION
    for at, argument in enumerate(argv):
        name, _, value = argument.partition("=")
        if name.replace("_", "-") == _OPTION:
            text = value or (argv[at + 1] if at + 1 < len(argv) else "")
            try:
                used = float(text)
            except ValueError:
                return None  # vLLM refuses it, whatever comes after
    less = round(used - _STEP, 3)
    return [*argv, _OPTION, f"{less:g}"] if less >= _LEAST else None
