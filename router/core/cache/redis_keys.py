"""The names of all Redis keys of Roundhouse.

    rh:1:{tenant}:{model}:{system}:{rag}:{query}               an entry; see router.core.cache.key_derivation
    rh:1:{tenant}:{model}:{system}:{rag}:{query}.{number}      a further sample, see router.core.cache.sample
    rh:1:claim:{tenant}:{model}:{system}:{rag}:{query}         the lease of the leader that generates that entry
    rh:1:flight:{tenant}:{model}:{system}:{rag}:{query}:{id}   what an in-flight request has published, a stream
    rh:1:purge:log                                             the purge log, a stream
    rh:1:purge:none                                            never exists; see router.net.redis.standalone
    rh:1:hits:{tenant}                                         hit counts of entries, a sorted set
    rh:1:drain:engines                                         the drained engines, a hash
    rh:1:engine:announced                                      the engines that announce themselves, a hash
    rh:1:engine:adapters                                       when an adapter was last loaded or unloaded
    rh:1:engine:gpu:{group}                                    which engines of a GPU are awake, a hash
    rh:1:engine:gpu-switches:{group}                           the last switches between them, a list
    rh:1:breaker:{engine}                                      the state of an engine's breaker
    rh:1:breaker:{engine}:probe                                the claim on the one request of a half-open breaker
    rh:1:limit:{tenant}                                        the recent usage of a tenant with limits, JSON
    rh:1:budget:{tenant}                                       what a tenant with budgets has used, a hash
    rh:1:usage:{tenant}:{day}                                  the usage of a tenant on that day, by API key, a hash
    rh:1:watchdog:log                                          what the watchdog did and why, a stream
    rh:1:watchdog:drain:{engine}                               the watchdog has drained the engine and will resume it
    rh:1:prompts:{model}                                       which recent requests of a model are kept, a list
    rh:1:prompts:{model}:{id}                                  one of them, a hash
    rh:1:savings:{day}                                         what the cache saved on that day, a hash
    rh:1:traffic:{minute}                                      sums of all routers' traffic in a minute, a hash
    rh:1:watched                                               exists while someone watches the routers
    rh:1:router:snapshots                                      what each router process sees, a hash
    rh:1:router:starts:{model}                                 how long its engines' last starts took, a list
    rh:1:router:audit                                          what administrators changed, a stream
    rh:1:response:{tenant}                                     when each kept response was last used, a sorted set
    rh:1:response:{tenant}:{{rh:1:response:{tenant}}}          the bytes of each, a hash; see `response_sizes_key`
    rh:1:response:{tenant}:{id}                                a kept response of /v1/responses, a hash
    rh:1:batches                                               the batches that have not ended, a sorted set
    rh:1:router:ended-batches                                  the last ones that have ended, a sorted set
    rh:1:batches:{tenant}                                      when each batch of a tenant was created, a sorted set
    rh:1:batches:{tenant}:{id}                                 a batch, a hash
    rh:1:requests:recent                                       the last requests while someone watches, a sorted set
    rh:1:requests:notable                                      those of them that failed or were slow, a sorted set
    rh:1:session:secret                                        what signs the cookies of the dashboard
    rh:1:session:link:{id}                                     a sign-in link that was not used yet
    rh:1:session:samples:{tenant}:{model}:{system}:{rag}:{query}
                                                               which samples of a request were handed out, a sorted set
    rh:1:apikey:records                                        the API keys that live in Redis, a hash
    rh:1:apikey:applied                                        which version of them each router process applies
    rh:1:apikey:used                                           when each API key was last used, a hash

After `rh:1:`, all but the first have a word that is reserved as a tenant name, so that no pattern matches both.
"""

from collections.abc import Iterable
from typing import Final

KEY_PREFIX: Final = "rh:1:"
"""The prefix of all keys; the number is a version, which changes when the same request would get another key."""

EMPTY_HASH: Final = "0" * 16
"""Stands in the key for an empty system or rag part."""

RESERVED_TENANT_NAMES: Final = (
    "apikey", "batches", "breaker", "budget", "claim", "drain", "engine", "flight", "hits", "limit", "prompts", "purge",
    "requests", "response", "router", "savings", "session", "traffic", "usage", "watchdog", "watched",
)  # fmt: skip

_ENTRY_PARTS: Final = 5
_PURGE_PREFIX: Final = KEY_PREFIX + "purge:"
PURGE_LOG_KEY: Final = _PURGE_PREFIX + "log"
ABSENT_KEY: Final = _PURGE_PREFIX + "none"
_DRAIN_PREFIX: Final = KEY_PREFIX + "drain:"
DRAINS_KEY: Final = _DRAIN_PREFIX + "engines"
_ENGINE_PREFIX: Final = KEY_PREFIX + "engine:"
ANNOUNCEMENTS_KEY: Final = _ENGINE_PREFIX + "announced"
ADAPTERS_KEY: Final = _ENGINE_PREFIX + "adapters"
_GPU_PREFIX: Final = _ENGINE_PREFIX + "gpu:"
_GPU_SWITCHES_PREFIX: Final = _ENGINE_PREFIX + "gpu-switches:"
_CLAIM_PREFIX: Final = KEY_PREFIX + "claim:"
_FLIGHT_PREFIX: Final = KEY_PREFIX + "flight:"
_HITS_PREFIX: Final = KEY_PREFIX + "hits:"
_LIMIT_PREFIX: Final = KEY_PREFIX + "limit:"
_BUDGET_PREFIX: Final = KEY_PREFIX + "budget:"
_USAGE_PREFIX: Final = KEY_PREFIX + "usage:"
_PROMPTS_PREFIX: Final = KEY_PREFIX + "prompts:"
_RESPONSE_PREFIX: Final = KEY_PREFIX + "response:"
OPEN_BATCHES_KEY: Final = KEY_PREFIX + "batches"
_BATCHES_PREFIX: Final = OPEN_BATCHES_KEY + ":"
_SAVINGS_PREFIX: Final = KEY_PREFIX + "savings:"
_BREAKER_PREFIX: Final = KEY_PREFIX + "breaker:"
_PROBE_SUFFIX: Final = ":probe"
_WATCHDOG_PREFIX: Final = KEY_PREFIX + "watchdog:"
WATCHDOG_LOG_KEY: Final = _WATCHDOG_PREFIX + "log"
_TRAFFIC_PREFIX: Final = KEY_PREFIX + "traffic:"
WATCHED_KEY: Final = KEY_PREFIX + "watched"
SNAPSHOTS_KEY: Final = KEY_PREFIX + "router:snapshots"
AUDIT_KEY: Final = KEY_PREFIX + "router:audit"
ENDED_BATCHES_KEY: Final = KEY_PREFIX + "router:ended-batches"
_STARTS_PREFIX: Final = KEY_PREFIX + "router:starts:"
RECENT_REQUESTS_KEY: Final = KEY_PREFIX + "requests:recent"
NOTABLE_REQUESTS_KEY: Final = KEY_PREFIX + "requests:notable"
SESSION_SECRET_KEY: Final = KEY_PREFIX + "session:secret"
_SESSION_LINK_PREFIX: Final = KEY_PREFIX + "session:link:"
_SAMPLES_PREFIX: Final = KEY_PREFIX + "session:samples:"
_SAMPLE_SEPARATOR: Final = "."
_KEYS_PREFIX: Final = KEY_PREFIX + "apikey:"
KEYS_RECORDS_KEY: Final = _KEYS_PREFIX + "records"
KEYS_APPLIED_KEY: Final = _KEYS_PREFIX + "applied"
KEYS_USED_KEY: Final = _KEYS_PREFIX + "used"


def gpu_group_key(group: str) -> str:
    return _GPU_PREFIX + group


def gpu_switches_key(group: str) -> str:
    return _GPU_SWITCHES_PREFIX + group


def entry_key(tenant: str, model: str, system: str, rag: str, query: str) -> str:
    return f"{KEY_PREFIX}{tenant}:{model}:{system}:{rag}:{query}"


def split_entry_key(key: str) -> list[str] | None:
    """The arguments of `entry_key`; None for what is no entry's key. See key_parts.KeyParts.parse."""
    if not key.startswith(KEY_PREFIX):
        return None
    parts = key[len(KEY_PREFIX) :].split(":")
    return parts if len(parts) == _ENTRY_PARTS else None


def sample_key(key: str, number: int) -> str:
    first = first_sample_key(key)
    return f"{first}{_SAMPLE_SEPARATOR}{number}" if number else first


def first_sample_key(key: str) -> str:
    path, _, query = key.rpartition(":")
    return f"{path}:{split_query(query)[0]}"


def split_query(query: str) -> tuple[str, str]:
    """The hash of a key's query part, and the number of the sample; empty for the first sample."""
    query_hash, _, number = query.partition(_SAMPLE_SEPARATOR)
    return query_hash, number


def samples_key(key: str) -> str:
    return _SAMPLES_PREFIX + first_sample_key(key)[len(KEY_PREFIX) :]


def sampled_entry_key(key: str) -> str:
    """The key of the first sample, for a `samples_key`."""
    return KEY_PREFIX + key[len(_SAMPLES_PREFIX) :]


def entry_prefix(tenant: str) -> str:
    return f"{KEY_PREFIX}{tenant}:"


def batches_key(tenant: str) -> str:
    return _BATCHES_PREFIX + tenant


def batch_key(tenant: str, id_: str) -> str:
    return f"{_BATCHES_PREFIX}{tenant}:{id_}"


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


def budget_key(tenant: str) -> str:
    return _BUDGET_PREFIX + tenant


def usage_key(tenant: str, day: str) -> str:
    return f"{_USAGE_PREFIX}{tenant}:{day}"


def prompts_key(model: str) -> str:
    return _PROMPTS_PREFIX + model


def prompt_key(model: str, id_: str) -> str:
    return f"{_PROMPTS_PREFIX}{model}:{id_}"


def responses_key(tenant: str) -> str:
    return _RESPONSE_PREFIX + tenant


def response_sizes_key(tenant: str) -> str:
    """In a cluster, what is between braces determines the slot: it is that of `responses_key`."""
    key = responses_key(tenant)
    return f"{key}:{{{key}}}"


def response_key(tenant: str, id_: str) -> str:
    return f"{_RESPONSE_PREFIX}{tenant}:{id_}"


def savings_key(day: str) -> str:
    return _SAVINGS_PREFIX + day


def traffic_key(minute: int) -> str:
    """`minute`: minutes since the epoch."""
    return f"{_TRAFFIC_PREFIX}{minute}"


def starts_key(model: str) -> str:
    return _STARTS_PREFIX + model


def breaker_key(engine: str) -> str:
    return _BREAKER_PREFIX + engine


def probe_key(engine: str) -> str:
    return _BREAKER_PREFIX + engine + _PROBE_SUFFIX


def session_link_key(link_id: str) -> str:
    return _SESSION_LINK_PREFIX + link_id


def watchdog_drain_key(engine: str) -> str:
    return f"{_WATCHDOG_PREFIX}drain:{engine}"


def is_breaker_key(key: str) -> bool:
    """True for breakers and for the claims on their probes."""
    return key.startswith(_BREAKER_PREFIX)


def breaker_engine(key: str) -> str:
    """The engine of a breaker's key; for a probe's key, a name that no engine can have (it contains a colon)."""
    return key[len(_BREAKER_PREFIX) :]


# The keys, besides entries, of whose changes a router is notified: not claims, hits, limits, traffic and so on.
# Of the API keys only the records: the others change all the time.
_NON_ENTRY_PREFIXES: Final = (
    _BREAKER_PREFIX, _DRAIN_PREFIX, _ENGINE_PREFIX, _FLIGHT_PREFIX, _PURGE_PREFIX, KEYS_RECORDS_KEY,
)  # fmt: skip

CLAIMS_PATTERN: Final = _CLAIM_PREFIX + "*"
FLIGHTS_PATTERN: Final = _FLIGHT_PREFIX + "*"
HITS_PATTERN: Final = _HITS_PREFIX + "*"
PROMPTS_PATTERN: Final = _PROMPTS_PREFIX + "*"
RESPONSES_PATTERN: Final = _RESPONSE_PREFIX + "*"
RESPONSE_SIZES_PATTERN: Final = _RESPONSE_PREFIX + "*:{*}"
"""Patterns for SCAN MATCH."""


def is_prompt_key(key: str) -> bool:
    """Whether a key that matches PROMPTS_PATTERN is one request, and not the list of a model."""
    return ":" in key[len(_PROMPTS_PREFIX) :]


def is_response_key(key: str) -> bool:
    """Whether a key that matches RESPONSES_PATTERN is one response, and not the index of a tenant."""
    return ":" in key[len(_RESPONSE_PREFIX) :] and "{" not in key


def response_tenant(key: str) -> str:
    """The tenant of a key that matches RESPONSES_PATTERN."""
    return key[len(_RESPONSE_PREFIX) :].partition(":")[0]


def is_flight_key(key: str) -> bool:
    return key.startswith(_FLIGHT_PREFIX)


def tracked_prefixes(tenants: Iterable[str]) -> list[str]:
    """The prefixes of the keys whose changes Redis reports to a router (CLIENT TRACKING ... BCAST PREFIX)."""
    # Redis refuses overlapping prefixes. These begin with different words: no tenant has a reserved name.
    return [*map(entry_prefix, tenants), *_NON_ENTRY_PREFIXES]


def is_entry_key(key: str) -> bool:
    """Whether a key with one of the tracked prefixes is an entry."""
    return not key.startswith(_NON_ENTRY_PREFIXES)
