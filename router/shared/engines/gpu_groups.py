"""What the routers know together of a GPU whose engines take turns.

    rh:1:engine:gpu:{group}    a hash
        lease              `{process} {until}`: the process that decides, until when in ms of Redis' clock
        state              what it has decided, JSON: see GroupState
        order              `{time} {json}`: what an operator wants, see Order
        process:{id}       `{time} {json}`: what a process has seen of the group, see GroupReport
        launcher:{engine}  `{time} {json}`: what an engine's process does, as its launcher says; see ProcessReport
    rh:1:engine:gpu-switches:{group}    a list: the last switches, JSON, the newest first; see Switch

Theory of operation. Each process of each router exchanges what it knows several times a second, in one command: it
writes its report, and gets the state and the reports of the others. The command also takes the lease if nobody holds
it. The holder decides; the others apply the state, and say in their reports which version they apply. So the holder
knows when no process sends requests to an engine any more. A process whose lease has ended can write no state: of two
that believe that they hold it, only one can go on. Launchers exchange in the same way, without the lease.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from router.core.cache.redis_keys import gpu_group_key, gpu_switches_key
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError, UnexpectedReplyError
from router.net.redis.pipeline import RedisDownError, RedisPipeline

T = TypeVar("T")

log = logging.getLogger("roundhouse.engines")

LEASE: Final = 10.0
"""Seconds after the last exchange of its holder for which a lease holds."""

REPORT_LIFETIME: Final = 5.0
"""Seconds after which the report of a process that exchanges no more does not count."""

ORDER_LIFETIME: Final = 600.0
"""Seconds for which an order waits until it can be carried out."""

MAX_SWITCHES: Final = 500
"""That are kept of a group."""

_RETENTION: Final = 86400  # seconds after the last exchange

# ARGV: the process, the field of the report and the report, the length of the lease (0: it is not taken), the lifetimes
# of a report and of an order, all in ms, and the retention in seconds. Returns the holder, the state, the order, then
# the field and the text of each report.
_EXCHANGE_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text(number) return string.format('%.0f', number) end
redis.call('HSET', KEYS[1], ARGV[2], text(now) .. ' ' .. ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[7])
local holder, ends = string.match(redis.call('HGET', KEYS[1], 'lease') or '', '^(%S+) (%d+)$')
ends = tonumber(ends or 0)
-- One that ends later than any can was written before the clock was set back.
if ARGV[4] ~= '0' and (holder == ARGV[1] or ends < now or ends > now + ARGV[4]) then
    holder = ARGV[1]
    redis.call('HSET', KEYS[1], 'lease', holder .. ' ' .. text(now + ARGV[4]))
end
local found = {holder or '', redis.call('HGET', KEYS[1], 'state') or '', ''}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
    local kind = string.match(fields[i], '^(%a+):') or fields[i]
    if kind == 'process' or kind == 'launcher' or kind == 'order' then
        local at, report = string.match(fields[i + 1], '^(%d+) (.+)$')
        local lifetime = kind == 'order' and ARGV[6] or ARGV[5]
        if not at or math.abs(now - at) > tonumber(lifetime) then
            redis.call('HDEL', KEYS[1], fields[i])
        elseif kind == 'order' then
            found[3] = fields[i + 1]
        else
            found[#found + 1] = fields[i]
            found[#found + 1] = report
        end
    end
end
return found
"""

# ARGV: the process, the state, and the order that it carries out. Only the holder of the lease may write it.
_SET_STATE_SCRIPT: Final = """
local holder = string.match(redis.call('HGET', KEYS[1], 'lease') or '', '^(%S+) ')
if holder ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[2])
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'order') == ARGV[3] then redis.call('HDEL', KEYS[1], 'order') end
return 1
"""

# ARGV: the order, and the retention in seconds. Returns whether a process decides.
_GIVE_ORDER_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = string.match(redis.call('HGET', KEYS[1], 'lease') or '', '^%S+ (%d+)$')
if not ends or tonumber(ends) < now then return 0 end
redis.call('HSET', KEYS[1], 'order', string.format('%.0f', now) .. ' ' .. ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""

Phase = Literal["steady", "draining", "sleeping", "waking", "returning"]
"""`returning`: `wakes` did not wake up, so those of `sleeps` do again."""

ProcessState = Literal["running", "changing", "stopped", "failed"]
"""`running`: it is ready."""


class GroupState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is decided for a group. Instants in seconds of Redis' clock.

    - `version`: grows with each state.
    - `sleeps`, `wakes`: of the switch under way, in its `phase`; of the last one if it is steady. `wakes` may be empty.
    - `awake`: the engines that may get requests, but for those of `sleeps` during a switch, and since when.
    - `asleep`: the others, and since when.
    - `kept`: engines that an operator has woken up, and until when they keep their turn.
    - `wake_seconds`: how long the last switch to an engine took.
    """

    version: int = 0
    phase: Phase = "steady"
    sleeps: tuple[str, ...] = ()
    wakes: str = ""
    since: float = 0.0
    awake: Mapping[str, float] = {}
    asleep: Mapping[str, float] = {}
    kept: Mapping[str, float] = {}
    wake_seconds: Mapping[str, float] = {}

    @property
    def running(self) -> frozenset[str]:
        """The engines whose processes run, where those of others are stopped."""
        # Those that are to sleep are in `awake` until no request runs there.
        woken = {"waking": (self.wakes,), "returning": self.sleeps}.get(self.phase, ())
        return frozenset((*self.awake, *woken))

    def rest_of(self, name: str) -> str:
        """Why an engine gets no requests; empty if it does."""
        if self.phase != "steady" and name in self.sleeps:
            return {"draining": "about to sleep", "returning": "waking up"}.get(self.phase, "asleep")
        if self.phase == "waking" and name == self.wakes:
            return "waking up"
        return "" if name in self.awake else "asleep"


class Switch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A switch that has ended. `error`: why `wakes` did not wake up."""

    at: float
    wakes: str
    sleeps: tuple[str, ...]
    seconds: float
    error: str = ""


class Order(msgspec.Struct, frozen=True):
    """`sleeps`: the engine is to sleep, else to wake up."""

    engine: str
    sleeps: bool


class MemberReport(msgspec.Struct, frozen=True, array_like=True):
    """What a process has at an engine, or waiting for it; see router.core.resilience.gpu_turns.GroupMember."""

    people: int = 0
    lines: int = 0
    used_at: float = 0.0
    asked_at: float | None = None
    line_at: float | None = None


class GroupReport(msgspec.Struct, frozen=True):
    """`version`: of the state that the process applies; -1 before it knows one. `members`: by engine."""

    version: int = -1
    members: Mapping[str, MemberReport] = {}


class ProcessReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """`version`: of the state that the launcher applies. `cause`: why it has failed."""

    version: int
    state: ProcessState
    cause: str = ""


class GroupView(NamedTuple):
    """- `state`: None if none was decided yet.
    - `order`: of an operator, and its text in Redis.
    - `reports`: by process, the own one included. `processes`: by engine.
    """

    is_holder: bool
    state: GroupState | None
    order: Order | None
    order_text: bytes
    reports: Mapping[str, GroupReport]
    processes: Mapping[str, ProcessReport]


_decode_state: Final = msgspec.json.Decoder(GroupState).decode
_decode_switch: Final = msgspec.json.Decoder(Switch).decode
_decode_order: Final = msgspec.json.Decoder(Order).decode
_decode_report: Final = msgspec.json.Decoder(GroupReport).decode
_decode_process: Final = msgspec.json.Decoder(ProcessReport).decode


def exchange_command(group: str, process: str, report: GroupReport) -> Command:
    """Writes the report of a router's process, and takes the lease if it is free. `process`: an id without blanks."""
    return _exchange(group, process, f"process:{process}", msgspec.json.encode(report), LEASE)


def report_process_command(group: str, engine: str, report: ProcessReport) -> Command:
    """Writes what the process of an engine does."""
    return _exchange(group, "-", f"launcher:{engine}", msgspec.json.encode(report), 0)


def _exchange(group: str, process: str, field: str, report: bytes, lease: float) -> Command:
    return (
        "EVAL", _EXCHANGE_SCRIPT, 1, gpu_group_key(group), process, field, report, int(1000 * lease),
        int(1000 * REPORT_LIFETIME), int(1000 * ORDER_LIFETIME), _RETENTION,
    )  # fmt: skip


def set_state_command(group: str, process: str, state: GroupState, order_text: bytes = b"") -> Command:
    """The reply is 0 if another process holds the lease. `order_text`: of the order that the state carries out."""
    encoded = msgspec.json.encode(state)
    return ("EVAL", _SET_STATE_SCRIPT, 1, gpu_group_key(group), process, encoded, order_text)


def give_order_command(group: str, order: Order) -> Command:
    """The reply is 0 if no router decides, so that nobody would carry it out."""
    return ("EVAL", _GIVE_ORDER_SCRIPT, 1, gpu_group_key(group), msgspec.json.encode(order), _RETENTION)


def read_turns_command(group: str) -> Command:
    return ("HMGET", gpu_group_key(group), "state", "order")


def decode_turns(reply: Any) -> tuple[GroupState | None, bool]:
    """The state, and whether an order waits. None for no state, and for what another version or program wrote."""
    if not isinstance(reply, list) or len(reply) != 2:
        raise UnexpectedReplyError.of(reply)
    state, order = reply
    return (_decoded(_decode_state, state) if isinstance(state, bytes) else None), order is not None


def read_switches_command(group: str) -> Command:
    return ("LRANGE", gpu_switches_key(group), 0, MAX_SWITCHES - 1)


def decode_switches(reply: Any) -> list[Switch]:
    """The newest first."""
    found = (_decoded(_decode_switch, text) for text in reply if isinstance(text, bytes))
    return [switch for switch in found if switch is not None]


def decode_view(reply: Sequence[Any], process: str = "") -> GroupView:
    """Raises UnexpectedReplyError."""
    if not isinstance(reply, list) or len(reply) < 3 or not all(isinstance(each, bytes) for each in reply):
        raise UnexpectedReplyError.of(reply)
    holder, state, order, *rest = reply
    found: dict[bytes, dict[str, Any]] = {b"process": {}, b"launcher": {}}
    for field, text in zip(rest[::2], rest[1::2], strict=True):
        kind, _, name = field.partition(b":")
        report = _decoded(_decode_report if kind == b"process" else _decode_process, text)
        if report is not None:
            found[kind][name.decode("utf-8", "replace")] = report
    return GroupView(
        is_holder=holder == process.encode(),
        state=_decoded(_decode_state, state),
        order=_decoded(_decode_order, order.partition(b" ")[2]),
        order_text=order,
        reports=found[b"process"],
        processes=found[b"launcher"],
    )


class GpuGroups:
    """Exchanges of one process. Its methods raise RedisDownError."""

    def __init__(self, pipeline: RedisPipeline, process: str) -> None:
        """`process`: an id without blanks that no other process has."""
        self._pipeline = pipeline
        self._process = process
        self._refusal = ""  # of Redis, the last one

    async def exchange(self, group: str, report: GroupReport) -> GroupView:
        reply = await self._execute(exchange_command(group, self._process, report))
        return self._pipeline.decode(lambda found: decode_view(found, self._process), reply)

    async def set_state(self, group: str, state: GroupState, order_text: bytes = b"") -> bool:
        """Whether it is in effect, since this process holds the lease."""
        return bool(await self._execute(set_state_command(group, self._process, state, order_text)) == 1)

    def add_switch(self, group: str, switch: Switch) -> None:
        key = gpu_switches_key(group)
        self._pipeline.send(
            ("LPUSH", key, msgspec.json.encode(switch)),
            ("LTRIM", key, 0, MAX_SWITCHES - 1),
            ("EXPIRE", key, _RETENTION),
        )

    async def switches(self, group: str) -> Sequence[Switch]:
        """The newest first."""
        return decode_switches(await self._execute(read_switches_command(group)))

    async def give_order(self, group: str, order: Order) -> bool:
        """Whether a router decides, so that it is carried out."""
        return bool(await self._execute(give_order_command(group, order)) == 1)

    async def _execute(self, command: Command) -> Any:
        (reply,) = await self._pipeline.execute(command)
        if isinstance(reply, RedisBackendError):  # the server of a cluster that holds the key is down
            raise RedisDownError
        if isinstance(reply, Exception):  # out of memory, or no permission
            if str(reply) != self._refusal:  # else it is logged already
                self._refusal = str(reply)
                log.warning("Redis refuses the state of a GPU, so its engines take no turns: %s", reply)
            raise RedisDownError
        self._refusal = ""
        return reply


def _decoded(decode: Callable[[bytes], T], text: bytes) -> T | None:
    """None for a text that another version wrote, or another program."""
    try:
        return decode(text)
    except msgspec.MsgspecError:
        return None
