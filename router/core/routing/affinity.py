"""Prefix affinity: which replica probably has the beginning of a prompt in its prefix cache.

Theory. vLLM keeps the KV blocks of earlier prompts, and skips the prefix that a new prompt shares with them. Requests
mostly share the conversation so far, or the system prompt. So a request has a home: a hash of its session, or else of
its system prompt and the beginning of what follows, which a conversation keeps in all its turns. Each engine has a
weight, a hash of the home and its URL, and the engine with the highest weight is preferred (rendezvous hashing; Thaler
and Ravishankar, 1998). So all routers agree without communication, and an engine that is added or removed moves only
its own share.

One home can have more requests than a replica can serve. So a replica with more than its share of the load is skipped
(consistent hashing with bounded loads; Mirrokni, Thorup and Zadimoghaddam, 2016) for the next highest weight.
"""

import re
from collections.abc import Iterable
from math import ceil
from typing import Final

import xxhash

SESSION_ID: Final = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
"""A valid X-Session-ID; any other is ignored."""

LOAD_BOUND: Final = 2.0
"""The multiple of the mean load up to which an engine is preferred for its affinity; of two engines, 1.5."""


def session_home(tenant: str, session: str) -> int:
    """The home of a session's requests, which belongs to its tenant."""
    return xxhash.xxh3_64_intdigest(f"session:{tenant}:{session}".encode())


def rendezvous_weight(home: int, engine: str) -> int:
    """`engine`: what identifies it in all processes, whatever its place in the configuration."""
    return xxhash.xxh3_64_intdigest(engine.encode(), home)  # not Python's hash(), which differs between processes


def is_within_load_bound(load: float, loads: Iterable[float]) -> bool:
    """Whether an engine with this load may be preferred; `loads` are those of all engines, its own included.

    Each load includes the new request.
    """
    all_ = list(loads)
    # Rounded up: otherwise a few requests with one affinity would be spread over idle replicas.
    bound = min(LOAD_BOUND, (1 + len(all_)) / 2)  # one of two engines never has more than twice the mean
    return load <= ceil(bound * sum(all_) / len(all_))
