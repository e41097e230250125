"""Access to torch, transformers and tokenizers: large, untyped, and absent on machines without engines."""

import importlib
import os
from dataclasses import dataclass
from typing import Any


class MissingLibraryError(Exception):
    """A library for training is missing; the message is one line with its name and the remedy."""


@dataclass(frozen=True)
class Libraries:
    """The three modules, typed `Any`, so that the rest type-checks on machines without them."""

    torch: Any
    transformers: Any
    tokenizers: Any


def load_libraries(threads: int | None = None) -> Libraries:
    """Imports the libraries for training, without log output and offline.

    `threads`: the number of threads that torch computes with; None: torch's default.
    Raises MissingLibraryError if one of them is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # On shared cores, a thread that spins while it waits takes the core away from the thread that it waits for.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    loaded: dict[str, Any] = {}
    for name in ("torch", "transformers", "tokenizers"):
        try:
            loaded[name] = importlib.import_module(name)
        except ImportError as error:
            raise MissingLibraryError(
                f"cannot import {name} ({error}): run this with the Python that vLLM is installed in (make .venv-vllm)"
            ) from error
    libraries = Libraries(**loaded)
    libraries.transformers.utils.logging.set_verbosity_error()
    libraries.transformers.utils.logging.disable_progress_bar()
    if threads is not None:
        libraries.torch.set_num_threads(threads)
    return libraries
