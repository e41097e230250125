"""The names of what Roundhouse keeps in Redis, beside the entries themselves (see router.core.cache.key).

    rh:1:{tenant}:{model}:{system}:{rag}:{query}               an entry
    rh:1:claim:{tenant}:{model}:{system}:{rag}:{query}         which generation in flight is to give that entry
    rh:1:flight:{tenant}:{model}:{system}:{rag}:{query}:{id}   what it has said so far, a stream
    rh:1:purge:log                                             what was purged, a stream
    rh:1:purge:none                                            never there; see router.net.redis.standalone
    rh:1:hits:{tenant}                                         how often entries were hit, a sorted set
    rh:1:drain:engines                                         which engines get no new work, a hash
    rh:1:breaker:{engine}                                      whether an engine's breaker is open
    rh:1:breaker:{engine}:probe                                who sends the one request of a half-open breaker
    rh:1:limit:{tenant}                                        what a tenant with limits has used of late, JSON

All but the first begin with a word that no tenant can be called, so that a pattern means what it says.
"""

from collections.abc import Iterable
from typing import Final

KEY_PREFIX: Final = "rh:1:"
"""How each of our keys begins; the number changes when the same request would get another key."""

RESERVED_TENANT_NAMES: Final = ("breaker", "claim", "drain", "flight", "hits", "limit", "purge")
"""What no tenant can be called."""

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


def entry_prefix(tenant: str) -> str:
    """How the keys of a tenant's entries begin."""
    return f"{KEY_PREFIX}{tenant}:"


def claim_key(key: str) -> str:
    """The claim on the entry at `key`."""
    return _CLAIM_PREFIX + key[len(KEY_PREFIX) :]


def claimed_entry_key(claim: str) -> str:
    """The key of the entry that a claim is on."""
    return KEY_PREFIX + claim[len(_CLAIM_PREFIX) :]


def flight_key(key: str, flight_id: str) -> str:
    """The stream of the generation `flight`, which is to give the entry at `key`."""
    return f"{_FLIGHT_PREFIX}{key[len(KEY_PREFIX) :]}:{flight_id}"


def hits_key(tenant: str) -> str:
    """Where a tenant's hits are counted."""
    return _HITS_PREFIX + tenant


def limit_key(tenant: str) -> str:
    """Where what a tenant uses is counted."""
    return _LIMIT_PREFIX + tenant


def breaker_key(engine: str) -> str:
    """What the routers have found about an engine."""
    return _BREAKER_PREFIX + engine


def probe_key(engine: str) -> str:
    """The claim on the one request of a half-open breaker."""
    return _BREAKER_PREFIX + engine + _PROBE_SUFFIX


def is_breaker_key(key: str) -> bool:
    """Whether that is an engine's breaker, or the claim on its probe."""
    return key.startswith(_BREAKER_PREFIX)


def breaker_engine(key: str) -> str:
    """The engine of a breaker's key; of a claim's key, a name that no engine can have."""
    return key[len(_BREAKER_PREFIX) :]


_NON_ENTRY_PREFIXES: Final = (_BREAKER_PREFIX, _DRAIN_PREFIX, _FLIGHT_PREFIX, _PURGE_PREFIX)

CLAIMS_PATTERN: Final = _CLAIM_PREFIX + "*"
FLIGHTS_PATTERN: Final = _FLIGHT_PREFIX + "*"
HITS_PATTERN: Final = _HITS_PREFIX + "*"
"""What SCAN MATCH takes to find all of a kind."""


def is_flight_key(key: str) -> bool:
    """Whether that is the stream of a generation."""
    return key.startswith(_FLIGHT_PREFIX)


def tracked_prefixes(tenants: Iterable[str]) -> list[str]:
    """How the keys begin of whose changes a router wants to be told.

    Each ends with a colon, which no tenant's name can hold: Redis refuses prefixes of which one begins another.
    """
    return [*map(entry_prefix, tenants), *_NON_ENTRY_PREFIXES]


def is_entry_key(key: str) -> bool:
    """Whether that is an entry, of all whose changes a router is told."""
    return not key.startswith(_NON_ENTRY_PREFIXES)
