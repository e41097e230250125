"""The names of all Redis keys of Roundhouse.

    rh:1:{tenant}:{model}:{system}:{rag}:{query}               an entry; see router.core.cache.key_derivation
    rh:1:claim:{tenant}:{model}:{system}:{rag}:{query}         the lease of the leader that generates that entry
    rh:1:flight:{tenant}:{model}:{system}:{rag}:{query}:{id}   what an in-flight request has published, a stream
    rh:1:purge:log                                             the purge log, a stream
    rh:1:purge:none                                            never exists; see router.net.redis.standalone
    rh:1:hits:{tenant}                                         hit counts of entries, a sorted set
    rh:1:drain:engines                                         the drained engines, a hash
    rh:1:breaker:{engine}                                      the state of an engine's breaker
    rh:1:breaker:{engine}:probe                                the claim on the one request of a half-open breaker
    rh:1:limit:{tenant}                                        the recent usage of a tenant with limits, JSON

After `rh:1:`, all but the first have a word that is reserved as a tenant name, so that no pattern matches both.
"""

from collections.abc import Iterable
from typing import Final

KEY_PREFIX: Final = "rh:1:"
"""The prefix of all keys; the number is a version, which changes when the same request would get another key."""

EMPTY_HASH: Final = "0" * 16
"""Stands in the key for an empty system or rag part."""

RESERVED_TENANT_NAMES: Final = ("breaker", "claim", "drain", "flight", "hits", "limit", "purge")

_ENTRY_PARTS: Final = 5
_PURGE_PREFIX: Final = KEY_PREFIX + "purge:"
PURGE_LOG_KEY: Final = _PURGE_PREFIX + "log"
ABSENT_KEY: Final = _PURGE_PREFIX + "none"
_DRAIN_PREFIX: Final = KEY_PREFIX + "drain:"
DRAINS_KEY: Final = _DRAIN_PREFIX + "engines"
_CLAIM_PREFIX: Final = KEY_PREFIX + "claim:"
_FLIGHT_PREFIX: Final = KEY_PREFIX + "flight:"
_HITS_PREFIX: Final = KEY_PREFIX + "hits:"
_LIMIT_PREFIX: Final = KEY_PREFIX + "limit:"
_BREAKER_PREFIX: Final = KEY_PREFIX + "breaker:"
_PROBE_SUFFIX: Final = ":probe"


def entry_key(tenant: str, model: str, system: str, rag: str, query: str) -> str:
    return f"{KEY_PREFIX}{tenant}:{model}:{system}:{rag}:{query}"


def split_entry_key(key: str) -> list[str] | None:
    """The arguments of `entry_key`; None for what is no entry's key. See key_parts.KeyParts.parse."""
    if not key.startswith(KEY_PREFIX):
        return None
    parts = key[len(KEY_PREFIX) :].split(":")
    return parts if len(parts) == _ENTRY_PARTS else None


def entry_prefix(tenant: str) -> str:
    return f"{KEY_PREFIX}{tenant}:"


def claim_key(key: str) -> str:
    return _CLAIM_PREFIX + key[len(KEY_PREFIX) :]


def claimed_entry_key(claim: str) -> str:
    return KEY_PREFIX + claim[len(_CLAIM_PREFIX) :]


def flight_key(key: str, flight_id: str) -> str:
    return f"{_FLIGHT_PREFIX}{key[len(KEY_PREFIX) :]}:{flight_id}"


def hits_key(tenant: str) -> str:
    return _HITS_PREFIX + tenant


def limit_key(tenant: str) -> str:
    return _LIMIT_PREFIX + tenant


def breaker_key(engine: str) -> str:
    return _BREAKER_PREFIX + engine


def probe_key(engine: str) -> str:
    return _BREAKER_PREFIX + engine + _PROBE_SUFFIX


def is_breaker_key(key: str) -> bool:
    """True for breakers and for the claims on their probes."""
    return key.startswith(_BREAKER_PREFIX)


def breaker_engine(key: str) -> str:
    """The engine of a breaker's key; for a probe's key, a name that no engine can have (it contains a colon)."""
    return key[len(_BREAKER_PREFIX) :]


# The keys, besides entries, of whose changes a router is notified. Claims, hits and limits are not among them.
_NON_ENTRY_PREFIXES: Final = (_BREAKER_PREFIX, _DRAIN_PREFIX, _FLIGHT_PREFIX, _PURGE_PREFIX)

CLAIMS_PATTERN: Final = _CLAIM_PREFIX + "*"
FLIGHTS_PATTERN: Final = _FLIGHT_PREFIX + "*"
HITS_PATTERN: Final = _HITS_PREFIX + "*"
"""Patterns for SCAN MATCH."""


def is_flight_key(key: str) -> bool:
    return key.startswith(_FLIGHT_PREFIX)


def tracked_prefixes(tenants: Iterable[str]) -> list[str]:
    """The prefixes of the keys whose changes Redis reports to a router (CLIENT TRACKING ... BCAST PREFIX)."""
    # Redis refuses overlapping prefixes. Each ends with a colon, which no tenant name contains, so none overlap.
    return [*map(entry_prefix, tenants), *_NON_ENTRY_PREFIXES]


def is_entry_key(key: str) -> bool:
    """Whether a key with one of the tracked prefixes is an entry."""
    return not key.startswith(_NON_ENTRY_PREFIXES)
