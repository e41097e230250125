"""A trace in the format of Mooncake (FAST 2025), whose prompts are known by the hashes of their blocks.

One JSON object per line: `timestamp` in milliseconds, `input_length` and `output_length` in tokens, and `hash_ids`, a
number for each 512 tokens of the prompt. Equal numbers are equal blocks. https://github.com/kvcache-ai/Mooncake
"""

import gzip
import json
import random
from pathlib import Path
from typing import Final

from benchmarks.routing.model import Speeds
from benchmarks.routing.text import TOKEN_BYTES, words
from benchmarks.routing.workloads import Client, Workload, single

SHRUNK: Final = 4
"""Prompts are shorter by this factor, so that they fit four replicas, and answers by half of it."""

FASTER: Final = 5.0
BLOCK: Final = 512 // SHRUNK
MOST: Final = 24_000
"""Tokens of a prompt; longer ones are left out."""


def read_trace(path: Path, seed: int, requests: int = 2500) -> Workload:
    """The first requests of a file, which may be gzipped. The text of each block is made up."""
    rng = random.Random(f"trace {seed}")
    texts: dict[int, str] = {}

    def text(block: int) -> str:
        if block not in texts:
            texts[block] = words(random.Random(f"trace {seed} {block}"), BLOCK)
        return texts[block]

    clients = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for _, line in zip(range(requests), file, strict=False):
            row = json.loads(line)
            tokens = row["input_length"] // SHRUNK
            if tokens > MOST:
                continue
            first, *others = row["hash_ids"]
            rest = "".join(map(text, others))[: max(0, tokens - BLOCK) * TOKEN_BYTES]
            messages = [{"role": "system", "content": text(first)}, {"role": "user", "content": rest or "go on "}]
            # Timestamps of this trace are multiples of 3 s.
            at = (row["timestamp"] / 1000 + rng.uniform(0, 3)) / FASTER
            answer = words(rng, max(1, min(600, 2 * row["output_length"] // SHRUNK)))
            clients.append(Client(at, single(messages, answer)))
    return Workload("trace", clients, speeds=Speeds(blocks=32_768))
