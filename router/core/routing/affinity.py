"""Which replica has probably seen the beginning of a prompt before, so that its prefix cache hits.

Theory. vLLM keeps the KV blocks of prompts that it has worked on, and skips what a new prompt shares with them from its
beginning. What requests share is mostly the system prompt and the documents, or the conversation so far. So a request
has an affinity: a text that is the same for those which share such a beginning. Each engine gets a weight that is a
hash of the affinity and its name, and the heaviest is preferred (rendezvous hashing; Thaler and Ravishankar, 1998): all
routers agree without talking, and an engine that comes or goes moves only its own share.

One affinity can be of more requests than a replica can take. So one that has more than its part of the work is passed
over (consistent hashing with bounded loads; Mirrokni, Thorup and Zadimoghaddam, 2016), for the next heaviest.
"""

import re
from collections.abc import Iterable
from math import ceil
from typing import Final

import xxhash

from router.core.cache.key_derivation import EMPTY_HASH

SESSION_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""What an X-Session-ID may be; any other is passed over."""

LOAD_BOUND: Final = 1.25
"""How many times the mean load an engine may have and still be preferred."""


def affinity_key(key: str, tenant: str, session: str | None, sharing_group: str | None = None) -> str | None:
    """The affinity of a request with this key: its session's, else that of its system prompt and documents, if any.

    `shares`: the name of those whose prompts share prefixes; the tenant's where it is left out. See cache_salt.
    """
    if session is not None:
        return f"session:{tenant}:{session}"
    *_, model, system, rag, _ = key.split(":")
    return (
        f"prefix:{sharing_group or tenant}:{model}:{system}:{rag}"
        if (system, rag) != (EMPTY_HASH, EMPTY_HASH)
        else None
    )


def rendezvous_weight(affinity: str, engine: str) -> int:
    """How much an engine is preferred for an affinity: 64 bits, the same in every process."""
    return xxhash.xxh3_64_intdigest(f"{engine}\0{affinity}".encode())


def is_within_load_bound(load: float, loads: Iterable[float]) -> bool:
    """Whether an engine with this load may be preferred beside engines with these, its own included.

    Loads count the request that is to be placed. The bound is rounded up, so that few requests stay together.
    """
    all_ = list(loads)
    return load <= ceil(LOAD_BOUND * sum(all_) / len(all_))
