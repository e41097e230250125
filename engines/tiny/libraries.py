"""The seam to torch, transformers and tokenizers: large, untyped from here, and absent where no engine runs."""

import importlib
import os
from dataclasses import dataclass
from typing import Any


class MissingLibraryError(Exception):
    """This Python cannot train; the message is one line that says what is missing and what to do."""


@dataclass(frozen=True)
class Libraries:
    """The three modules, typed `Any`, so that everything beside this seam type-checks on machines without them."""

    torch: Any
    transformers: Any
    tokenizers: Any


def load_libraries(threads: int | None = None) -> Libraries:
    """Import what training needs, quietly and offline.

    `threads`: how many threads torch computes with; None leaves it its own choice.
    Raises MissingLibraryError where one of them is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # A thread that spins while it waits takes the core from the one it waits for where cores are shared.
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
