"""Prompts of made-up text in which a word is one token of four bytes.

So a router, which sees bytes, and the modelled replicas, which count tokens, agree about what is a prefix of what.
"""

import random
from array import array
from itertools import product
from typing import Final

from engines.simulator.kv_cache.block_pool import block_hashes

Message = dict[str, str]

TOKEN_BYTES: Final = 4
VOCABULARY: Final = ["".join(letters) + " " for letters in product("bcdfghjklmnprstvwz", "aeiou", "bdgklmnprst")]


def words(rng: random.Random, tokens: int) -> str:
    return "".join(rng.choices(VOCABULARY, k=tokens))


def render(messages: list[Message]) -> bytes:
    """A chat template: a prompt that ends where the answer begins.

    A later turn of the chat, with the answer as a message, begins with this prompt and the answer.
    """
    parts = [part for message in messages for part in (_header(message["role"]), _aligned(message["content"]), "<|e>")]
    return "".join([*parts, _header("assistant")]).encode()


def token_blocks(data: bytes) -> list[int]:
    """The hashes of the full blocks of a text, each of them with all that is before it."""
    return block_hashes(0, array("I", data[: len(data) // TOKEN_BYTES * TOKEN_BYTES]))


def _header(role: str) -> str:
    return f"<{role:-<10}>"


def _aligned(content: str) -> str:
    return content + " " * (-len(content) % TOKEN_BYTES)
