"""Prefix affinity: which replica probably has the beginning of a prompt in its prefix cache.

Theory. vLLM keeps the KV blocks of earlier prompts, and skips the prefix that a new prompt shares with them. Requests
mostly share the system prompt and the documents, or the conversation so far. So a request has an affinity key, which is
the same for all requests with such a common prefix. Each engine has a weight, a hash of the affinity key and its name,
and the engine with the highest weight is preferred (rendezvous hashing; Thaler and Ravishankar, 1998). So all routers
agree without communication, and an engine that is added or removed moves only its own share.

One affinity key can have more requests than a replica can serve. So a replica with more than its share of the load is
skipped (consistent hashing with bounded loads; Mirrokni, Thorup and Zadimoghaddam, 2016) for the next highest weight.
"""

import re
from collections.abc import Iterable
from math import ceil
from typing import Final

import xxhash

from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import EMPTY_HASH

SESSION_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""A valid X-Session-ID; any other is ignored."""

LOAD_BOUND: Final = 1.25
"""The multiple of the mean load up to which an engine is preferred for its affinity."""


def affinity_key(key: KeyParts, session: str | None, sharing_group: str | None = None) -> str | None:
    """The affinity key of a request: of its session, or else of its system prompt and documents; None without any.

    `sharing_group`: the tenants that share prefixes in vLLM's cache (see cache_salt); the tenant
    alone if it is None.
    """
    if session is not None:
        return f"session:{key.tenant}:{session}"
    if key.system == key.rag == EMPTY_HASH:
        return None
    return f"prefix:{sharing_group or key.tenant}:{key.model}:{key.system}:{key.rag}"


def rendezvous_weight(affinity: str, engine: str) -> int:
    # Not Python's hash(), which differs between processes. The zero byte keeps name and key apart.
    return xxhash.xxh3_64_intdigest(f"{engine}\0{affinity}".encode())


def is_within_load_bound(load: float, loads: Iterable[float]) -> bool:
    """Whether an engine with this load may be preferred; `loads` are those of all engines, its own included.

    Each load includes the new request.
    """
    all_ = list(loads)
    # Rounded up: otherwise a few requests with one affinity would be spread over idle replicas.
    return load <= ceil(LOAD_BOUND * sum(all_) / len(all_))
