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

PREFIX: Final = "rh:1:"
"""How each of our keys begins; the number changes when the same request would get another key."""

RESERVED: Final = ("breaker", "claim", "drain", "flight", "hits", "limit", "purge")
"""What no tenant can be called."""

_PURGE: Final = PREFIX + "purge:"
PURGES: Final = _PURGE + "log"
NOTHING_HERE: Final = _PURGE + "none"
_DRAIN: Final = PREFIX + "drain:"
DRAINS: Final = _DRAIN + "engines"
_CLAIM: Final = PREFIX + "claim:"
_FLIGHT: Final = PREFIX + "flight:"
_HITS: Final = PREFIX + "hits:"
_LIMIT: Final = PREFIX + "limit:"
_BREAKER: Final = PREFIX + "breaker:"
_PROBE: Final = ":probe"


def entries_of(tenant: str) -> str:
    """How the keys of a tenant's entries begin."""
    return f"{PREFIX}{tenant}:"


def claim_of(key: str) -> str:
    """The claim on the entry at `key`."""
    return _CLAIM + key[len(PREFIX) :]


def claimed_by(claim: str) -> str:
    """The key of the entry that a claim is on."""
    return PREFIX + claim[len(_CLAIM) :]


def flight_of(key: str, flight: str) -> str:
    """The stream of the generation `flight`, which is to give the entry at `key`."""
    return f"{_FLIGHT}{key[len(PREFIX) :]}:{flight}"


def hits_of(tenant: str) -> str:
    """Where a tenant's hits are counted."""
    return _HITS + tenant


def limit_of(tenant: str) -> str:
    """Where what a tenant uses is counted."""
    return _LIMIT + tenant


def breaker_of(engine: str) -> str:
    """What the routers have found about an engine."""
    return _BREAKER + engine


def probe_of(engine: str) -> str:
    """The claim on the one request of a half-open breaker."""
    return _BREAKER + engine + _PROBE


def is_breaker(key: str) -> bool:
    """Whether that is an engine's breaker, or the claim on its probe."""
    return key.startswith(_BREAKER)


def engine_of(breaker: str) -> str:
    """The engine of a breaker's key; of a claim's key, a name that no engine can have."""
    return breaker[len(_BREAKER) :]


_OTHERS: Final = (_BREAKER, _DRAIN, _FLIGHT, _PURGE)

ALL_CLAIMS: Final = _CLAIM + "*"
ALL_FLIGHTS: Final = _FLIGHT + "*"
ALL_HITS: Final = _HITS + "*"
"""What SCAN MATCH takes to find all of a kind."""


def is_flight(key: str) -> bool:
    """Whether that is the stream of a generation."""
    return key.startswith(_FLIGHT)


def heard(tenants: Iterable[str]) -> list[str]:
    """How the keys begin of whose changes a router wants to be told.

    Each ends with a colon, which no tenant's name can hold: Redis refuses prefixes of which one begins another.
    """
    return [*map(entries_of, tenants), *_OTHERS]


def is_entry(key: str) -> bool:
    """Whether that is an entry, of all whose changes a router is told."""
    return not key.startswith(_OTHERS)
