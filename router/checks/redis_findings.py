"""Judges Redis: rights, version, memory, persistence, password and clocks."""

from collections.abc import Collection, Iterator
from typing import Final

from router.checks.finding import Finding, Level, Problem, wrong
from router.checks.redis_facts import RedisFacts, ServerFacts
from router.core.cache.retention import Retention
from router.shared.connection.redis_rights import NEEDED_COMMANDS

SETTING: Final = "cache.url"
_OLDEST: Final = (6, 2)
_CLOCK_TOLERANCE: Final = 5.0  # seconds
_MOST_PATTERNS: Final = 3
_ADMINISTRATION: Final = {command.name for command in NEEDED_COMMANDS if command.use == "administration"}
_NEEDED_BY_WORTH: Final = {"pttl"}  # router.shared.cache.retention: else hits do not prolong what it has shortened


def judge_redis(what: str, facts: RedisFacts, *, retention: Retention = "ttl") -> Iterator[Finding]:
    """`what`: the name of Redis in the findings. `retention`: `cache.retention`."""
    if facts.problem is not None:
        yield wrong(what, SETTING, facts.problem)
        return
    yield _summary(what, facts)
    administration = _ADMINISTRATION - _NEEDED_BY_WORTH if retention == "worth" else _ADMINISTRATION
    for problem in facts.partial:
        yield wrong(what, SETTING, problem, "warning" if facts.kind == "sentinel" else "error")
    for server in facts.servers:
        name = what if len(facts.servers) == 1 else f"{what} {server.address}"
        yield from _rights(name, server, administration)
        yield from _version(name, server)
        yield from _memory(name, server)
        yield from _refusal(name, server)
        yield from _restart(name, server)
        yield from _clock(name, server)
    if facts.remote and not facts.has_password:
        problem = Problem(
            "takes commands without a password from other machines: all of them can read and write all entries",
            "set requirepass or a user in Redis, and the password in the URL",
        )
        yield wrong(what, SETTING, problem, "warning")


def _summary(what: str, facts: RedisFacts) -> Finding:
    note = f"version {facts.servers[0].info.get('redis_version', 'unknown')}"
    return Finding(what, note if len(facts.servers) == 1 else f"{note}, {len(facts.servers)} primaries")


def _rights(what: str, server: ServerFacts, administration: Collection[str]) -> Iterator[Finding]:
    """`administration`: the commands that requests do not need."""
    essential = [name for name in server.denied if name not in administration]
    other = [name for name in server.denied if name in administration]
    cases: list[tuple[list[str], str, Level]] = [
        (essential, "", "error"),
        (other, ", so `roundhouse cache` and the admin API fail", "warning"),
    ]
    for names, consequence, level in cases:
        if names:
            note = f"its user may not use {', '.join(names)}{consequence}"
            yield wrong(what, SETTING, _grant(note, *(f"+{name}" for name in names)), level)
    if server.hidden_keys:
        note = f"its user may not access the keys {_shortened(server.hidden_keys)}"
        yield wrong(what, SETTING, _grant(note, "~rh:1:*"))
    if server.protected_keys:
        note = f"its user may not write the keys {_shortened(server.protected_keys)}"
        yield wrong(what, SETTING, _grant(note, "~rh:1:*"))
    if not server.hears_channels:
        yield wrong(what, SETTING, _grant("its user may not use the channels rh:1:process:*", "&rh:1:*"))
    if server.untried:
        note = f"Redis before 7.0 does not tell whether its user may use {', '.join(server.untried)}; it is needed"
        yield Finding(what, note)


def _shortened(patterns: tuple[str, ...]) -> str:
    more = len(patterns) - _MOST_PATTERNS
    return ", ".join(patterns[:_MOST_PATTERNS]) + (f" and {more} other kinds" if more > 0 else "")


def _grant(note: str, *rules: str) -> Problem:
    return Problem(note, f"ACL SETUSER USER {' '.join(rules)}")


def _version(what: str, server: ServerFacts) -> Iterator[Finding]:
    text = server.info.get("redis_version", "")
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdecimal())
    if len(numbers) == len(_OLDEST) and numbers < _OLDEST:
        yield wrong(what, SETTING, Problem(f"version {text} is too old", "install Redis 6.2 or newer"))


def _memory(what: str, server: ServerFacts) -> Iterator[Finding]:
    limit, policy = server.info.get("maxmemory"), server.info.get("maxmemory_policy")
    if limit is None or policy is None:
        return
    lru = "maxmemory-policy allkeys-lru"
    if server.refuses_writes == "full":
        note = f"is full (maxmemory {_size(int(limit))}, {policy}): nothing is stored"
        yield wrong(what, None, Problem(note, f"set {lru} in redis.conf, or a larger maxmemory"))
    elif limit == "0":
        note = f"has no maxmemory, so {policy} evicts nothing: it grows until the kernel ends it"
        yield wrong(what, None, Problem(note, f"set maxmemory and {lru} in redis.conf"), "warning")
    elif policy == "noeviction":
        note = f"has maxmemory {_size(int(limit))} and noeviction: once it is full, nothing more is stored"
        yield wrong(what, None, Problem(note, f"set {lru} in redis.conf"), "warning")
    elif policy == "allkeys-random":
        note = "evicts keys at random (allkeys-random), also the log of purges: then all entries count as purged"
        yield wrong(what, None, Problem(note, f"set {lru} in redis.conf"), "warning")
    elif policy == "volatile-ttl":
        note = "evicts first what expires first (volatile-ttl): claims and other leases, breakers"
        yield wrong(what, None, Problem(note, f"set {lru} in redis.conf"), "warning")


def _refusal(what: str, server: ServerFacts) -> Iterator[Finding]:
    if server.refuses_writes == "cannot-save":
        fix = "make room on its disk, or correct its permissions; INFO persistence and its log say more"
        yield wrong(what, None, Problem("cannot save its data, and so takes no writes: nothing is stored", fix))
    elif server.refuses_writes == "too-few-replicas":
        note = "has fewer replicas than min-replicas-to-write, and so takes no writes: nothing is stored"
        yield wrong(what, None, Problem(note, "start the replicas, or remove min-replicas-to-write from redis.conf"))


def _restart(what: str, server: ServerFacts) -> Iterator[Finding]:
    if server.default_has_rights is False and server.info.get("aof_enabled") == "1":
        note = "loses data at each restart: it loads the append-only file as `default`, a user without rights"
        fix = "ACL SETUSER default ~* +@all; the user can stay off. In a file: user default off ~* &* +@all"
        yield wrong(what, None, Problem(note, fix), "warning")


def _size(size: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} {unit}"
        size //= 1024
    return f"{size} GiB"


def _clock(what: str, server: ServerFacts) -> Iterator[Finding]:
    if abs(server.clock_lead) >= _CLOCK_TOLERANCE:
        side = "ahead of" if server.clock_lead > 0 else "behind"
        note = f"its clock is {abs(server.clock_lead):.0f} s {side} this machine's; ages of entries follow Redis' clock"
        yield wrong(what, None, Problem(note, "run NTP on both machines"), "warning")
