"""The rights that the router's user of Redis needs, and how to find out without a trace whether it has them.

Theory of operation. A user with few rights may not ask for them (ACL WHOAMI and ACL DRYRUN are rights of their own, and
Redis 6.2 has no DRYRUN). So each command is sent in a form that changes nothing, whoever may send it: it reads, or it
names a key that never exists, or Redis refuses its arguments. Redis examines the rights before the arguments, the type
of the value and, in a cluster, the slot. Only a refusal for lack of rights counts, so in a cluster any server will do.
Redis notes each such refusal in its ACL LOG.
"""

import secrets
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from router.core.cache import redis_keys
from router.net.redis.commands import Command
from router.shared.inflight.claim import process_channel

Use = Literal["requests", "administration", "sentinel", "cluster"]
"""What fails without a command: the cache; `roundhouse cache` and the admin API; one kind of deployment."""


class NeededCommand(NamedTuple):
    """A command as in a rule of an ACL (`client|tracking`), and its form that changes nothing."""

    name: str
    use: Use
    trial: Command

    @property
    def rule(self) -> str:
        return f"+{self.name}"

    @property
    def loss(self) -> str:
        """What does not work without it."""
        if self.use == "administration":
            return "`roundhouse cache`, purges, batches and the admin API fail"
        return _LOSSES.get(self.name, "nothing is cached")


_NO_KEY: Final = redis_keys.ABSENT_KEY
_CHANNEL: Final = process_channel("check")

# LPUSH takes any argument. Redis 7 examines its rights in a script that may not write, and then refuses the write.
_LPUSH_TRIAL: Final = f"#!lua flags=no-writes\nreturn redis.pcall('LPUSH', '{_NO_KEY}', '')"

NEEDED_COMMANDS: Final[tuple[NeededCommand, ...]] = (
    NeededCommand("hello", "requests", ("HELLO",)),  # Redis lets everybody send it, so without it nothing fails
    NeededCommand("ping", "requests", ("PING",)),
    NeededCommand("client|setname", "requests", ("CLIENT", "SETNAME", "roundhouse")),
    NeededCommand("client|tracking", "requests", ("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", _NO_KEY)),
    NeededCommand("role", "sentinel", ("ROLE",)),
    NeededCommand("info", "requests", ("INFO", "server")),
    NeededCommand("cluster|slots", "cluster", ("CLUSTER", "SLOTS")),
    NeededCommand("asking", "cluster", ("ASKING",)),
    NeededCommand("exists", "requests", ("EXISTS", _NO_KEY)),
    NeededCommand("get", "requests", ("GET", _NO_KEY)),
    NeededCommand("set", "requests", ("SET", _NO_KEY, "", "XX")),
    NeededCommand("del", "requests", ("DEL", _NO_KEY)),
    NeededCommand("expire", "requests", ("EXPIRE", _NO_KEY, 1)),
    NeededCommand("pexpire", "requests", ("PEXPIRE", _NO_KEY, 1)),
    NeededCommand("time", "requests", ("TIME",)),
    NeededCommand("hget", "requests", ("HGET", _NO_KEY, "f")),
    NeededCommand("hgetall", "requests", ("HGETALL", _NO_KEY)),
    NeededCommand("hset", "requests", ("HSET", _NO_KEY, "f", "v", "field without a value")),
    NeededCommand("hdel", "requests", ("HDEL", _NO_KEY, "f")),
    NeededCommand("hincrby", "requests", ("HINCRBY", _NO_KEY, "f", "no number")),
    NeededCommand("eval", "requests", ("EVAL", "return 1", 0)),
    NeededCommand("lpush", "requests", ("EVAL", _LPUSH_TRIAL, 0)),
    NeededCommand("ltrim", "requests", ("LTRIM", _NO_KEY, 0, 0)),
    NeededCommand("lrange", "requests", ("LRANGE", _NO_KEY, 0, 0)),
    NeededCommand("xadd", "requests", ("XADD", _NO_KEY, "no id", "f", "v")),
    NeededCommand("xrange", "requests", ("XRANGE", _NO_KEY, "-", "+", "COUNT", 1)),
    NeededCommand("xrevrange", "requests", ("XREVRANGE", _NO_KEY, "+", "-", "COUNT", 1)),
    NeededCommand("zincrby", "requests", ("ZINCRBY", _NO_KEY, "no number", "m")),
    NeededCommand("zremrangebyrank", "requests", ("ZREMRANGEBYRANK", _NO_KEY, 0, 0)),
    NeededCommand("publish", "requests", ("PUBLISH", _CHANNEL, "")),  # nobody subscribes to it
    NeededCommand("subscribe", "requests", ("SUBSCRIBE", _CHANNEL)),
    NeededCommand("scan", "administration", ("SCAN", 0, "COUNT", 1)),
    NeededCommand("type", "administration", ("TYPE", _NO_KEY)),
    NeededCommand("pttl", "administration", ("PTTL", _NO_KEY)),
    NeededCommand("memory|usage", "administration", ("MEMORY", "USAGE", _NO_KEY)),
    NeededCommand("hmget", "requests", ("HMGET", _NO_KEY, "f")),
    NeededCommand("unlink", "administration", ("UNLINK", _NO_KEY)),
    NeededCommand("zrevrange", "administration", ("ZREVRANGE", _NO_KEY, 0, 0)),
    NeededCommand("zscore", "administration", ("ZSCORE", _NO_KEY, "m")),
    NeededCommand("zrem", "administration", ("ZREM", _NO_KEY, "m")),
    NeededCommand("wait", "administration", ("WAIT", 0, 1)),
    NeededCommand("command", "cluster", ("COMMAND",)),
)
"""Every command that a router, `roundhouse cache` or the watchdog sends to Redis, in scripts too."""


_NO_SHARING: Final = "requests at different routers do not share a generation"
_NO_STATUS: Final = "the dashboard and `roundhouse top` lack routers, traffic and requests"
_NO_PUSHES: Final = f"{_NO_SHARING}, and no entry is served from a router's memory"
_NO_STATE: Final = "drains, API keys and announced engines in Redis are not read"
_LOSSES: Final[Mapping[str, str]] = {
    "client|setname": "`roundhouse cache`, purges, batches and the admin API fail",
    "client|tracking": _NO_PUSHES,
    "subscribe": _NO_PUSHES,
    "ping": _NO_PUSHES,
    "pexpire": _NO_SHARING,
    "xrange": f"{_NO_SHARING}, and routers do not see purges",
    "publish": _NO_SHARING,
    "get": f"{_NO_SHARING}, and limits and budgets are counted in each process",
    "xadd": f"{_NO_SHARING}, and purges fail",
    "xrevrange": "`roundhouse cache import` fails, and changes are not in the audit",
    "expire": f"budgets are counted in each process, and {_NO_STATUS}",
    "hget": _NO_STATE,
    "hgetall": f"{_NO_STATE}, and {_NO_STATUS}",
    "hdel": "API keys, drains and announced engines cannot be removed",
    "hincrby": _NO_STATUS,
    "lpush": "new engines are not warmed up",
    "ltrim": "new engines are not warmed up",
    "lrange": "new engines are not warmed up",
    "zincrby": f"hits are not counted, and {_NO_STATUS}",
    "zremrangebyrank": f"hits are not counted, and {_NO_STATUS}",
    "info": "the dashboard and `roundhouse top` lack Redis' memory, and cache.retention has no effect",
    "time": f"ages follow each router's own clock, limits are counted in each process, and {_NO_STATE}",
}
"""All others are needed for entries, or to connect."""


def uses_of(kind: str) -> frozenset[str]:
    """What the router needs commands for at a kind of deployment (RedisUrl.kind)."""
    return frozenset(("requests", "administration", kind))


def sample_keys(tenants: Iterable[str]) -> list[tuple[str, str]]:
    """Patterns of keys, and a key of each that does not exist, or from which nothing is removed by `write_trial`."""
    nonce = secrets.token_hex(8)
    entries = {tenant: redis_keys.entry_key(tenant, nonce, nonce, nonce, nonce) for tenant in tenants}
    some_entry = redis_keys.entry_key(nonce, nonce, nonce, nonce, nonce)
    keys = [
        *entries.values(),
        redis_keys.claim_key(some_entry),
        redis_keys.flight_key(some_entry, nonce),
        redis_keys.PURGE_LOG_KEY,
        redis_keys.hits_key(nonce),
        redis_keys.DRAINS_KEY,
        redis_keys.ANNOUNCEMENTS_KEY,
        redis_keys.gpu_group_key(nonce),
        redis_keys.gpu_switches_key(nonce),
        redis_keys.breaker_key(nonce),
        redis_keys.limit_key(nonce),
        redis_keys.budget_key(nonce),
        redis_keys.usage_key(nonce, "2026-01-01"),
        redis_keys.KEYS_RECORDS_KEY,
        redis_keys.WATCHDOG_LOG_KEY,
        redis_keys.prompts_key(nonce),
        redis_keys.responses_key(nonce),
        redis_keys.OPEN_BATCHES_KEY,
        redis_keys.batches_key(nonce),
        redis_keys.ENDED_BATCHES_KEY,
        redis_keys.savings_key(nonce),
        redis_keys.traffic_key(0),
        redis_keys.WATCHED_KEY,
        redis_keys.SNAPSHOTS_KEY,
        redis_keys.starts_key(nonce),
        redis_keys.AUDIT_KEY,
        redis_keys.RECENT_REQUESTS_KEY,
        redis_keys.NOTABLE_REQUESTS_KEY,
        redis_keys.SESSION_SECRET_KEY,
        redis_keys.session_link_key(nonce),
        redis_keys.samples_key(some_entry),
    ]
    return [(key.partition(nonce)[0] + "*" if nonce in key else key, key) for key in keys]


def read_trial(key: str) -> Command:
    return ("EXISTS", key)


def write_trial(key: str) -> Command:
    """Changes nothing, whatever type the key has: there is no such field."""
    return ("HDEL", key, "no such field")


class Refusal(NamedTuple):
    """What Redis refuses for lack of rights."""

    of: Literal["command", "key", "channel"]


def parse_refusal(reply: object) -> Refusal | None:
    """None for a reply that is no refusal for lack of rights. Redis' versions have different texts."""
    if not isinstance(reply, Exception):
        return None
    text = str(reply).lower()
    if "no permissions to" not in text and "can't run this command" not in text:
        return None
    if "access" in text:
        return Refusal("channel" if "channel" in text else "key")
    return Refusal("command")


def is_unknown(command: str, reply: object) -> bool:
    """Whether Redis does not have this command, or has it under another name; some services lack CLIENT TRACKING."""
    if not isinstance(reply, Exception):
        return False
    # Its trial is valid, so each error means that it does not work.
    text = str(reply).lower()
    refused_tracking = command == "client|tracking" and parse_refusal(reply) is None
    return refused_tracking or "unknown command" in text or "unknown subcommand" in text


def is_inconclusive(reply: object) -> bool:
    """Redis 6.2 does not know scripts that may not write."""
    return isinstance(reply, Exception) and "compiling script" in str(reply)


DEFAULT_USER_COMMAND: Final[Command] = ("ACL", "GETUSER", "default")
"""Only an administrator may use it, so the router's user mostly gets a refusal."""


def has_all_rights(reply: object) -> bool | None:
    """Whether the user that the reply to ACL GETUSER describes may use all commands and keys; None for a refusal."""
    if not isinstance(reply, dict):
        return None
    commands, keys = reply.get(b"commands"), reply.get(b"keys")
    if not isinstance(commands, bytes):
        return None
    # Redis 6.2 has a list of patterns, without the `~`.
    patterns = keys.split() if isinstance(keys, bytes) else keys
    return commands.startswith(b"+@all") and isinstance(patterns, list) and (b"~*" in patterns or b"*" in patterns)
