"""The engines that their launchers announce, and the revisions of switched models, shared by all routers.

    rh:1:engine:announced     a hash
        engine/NAME  ->  TIME OWNER JSON     an engine, see AnnouncedEngine; JSON is `-` once it is withdrawn
        model/NAME   ->  JSON                the revision that a switch has given to a model, see ModelRevision
        changed      ->  TIME                when something changed that a router applies at once

Theory of operation. A launcher writes its engines again every few seconds, and TIME, in microseconds of Redis' clock,
changes each time. A router drops an engine whose TIME has not changed for LEASE seconds. It counts only seconds between
two reads of its own, so neither a clock that is set nor a Redis that was down ends a lease. An engine that is missing
in the hash is treated like one whose TIME does not change: Redis may have been emptied, and its launcher writes it
again. So a withdrawal is stored explicitly. Only an engine that a router sees for the first time has an age by Redis'
clock: its launcher may have ended long ago. If that is wrong, the next renewal shows it.

OWNER names the launcher. While a lease holds, another launcher cannot announce an engine of the same name.

Redis notifies every router process of each renewal, and the hash has 400 bytes for each engine. So upon a notification,
a process reads only `changed`, and the hash if that is new. It reads the hash every few seconds in any case: for the
leases, for values that are only shown (temperature, power, restarts), and for launchers that do not write `changed`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from router.core.cache.redis_keys import ANNOUNCEMENTS_KEY
from router.core.types import EngineTask
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.replies import hash_fields

log = logging.getLogger("roundhouse.engines")

LEASE: Final = 15.0
"""Seconds without a renewal after which an engine is dropped."""

RENEWAL_INTERVAL: Final = 5.0
"""Seconds between two renewals."""

MAX_ENGINES: Final = 256
"""Announced engines that a router takes up; further ones are ignored."""

_MAX_GAP: Final = 5.0  # seconds; the most that the time between two reads counts: longer, and Redis was not read
_MAX_VALUE: Final = 4096  # bytes
_RETENTION: Final = 3600  # seconds for which a field stays in Redis after its last renewal
_ENGINE_FIELD: Final = "engine/"
_MODEL_FIELD: Final = "model/"
_CHANGED_FIELD: Final = "changed"
_MAX_DIGITS: Final = 16  # of TIME
_WITHDRAWN: Final = b"-"

# ARGV: the lease and the retention in microseconds, the owner, the number of engines, then for each its
# field and JSON, then pairs of other fields and values. All are written, or nothing is. Returns the fields that another
# owner holds. `applied` is what routers apply at once; its patterns match no text in a string of the JSON, where each
# quote has a backslash.
_WRITE_SCRIPT: Final = """
local function applied(body)
  body = string.gsub(body, ',"temperature_celsius":[^,}]*', '')
  body = string.gsub(body, ',"power_watts":[^,}]*', '')
  return (string.gsub(body, ',"restarts":{[^}]*}', ''))
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local held, last, changed = {}, 4 + 2 * ARGV[4], false
for i = 5, last, 2 do
  local renewed, owner, body = string.match(redis.call('HGET', KEYS[1], ARGV[i]) or '', '^(%d+) (%S+) (.+)$')
  local holds = renewed and math.abs(now - renewed) < tonumber(ARGV[1])
  if holds and body ~= '-' and owner ~= ARGV[3] then
    held[#held + 1] = ARGV[i]
  end
  changed = changed or not holds or applied(body) ~= applied(ARGV[i + 1])
end
if #held > 0 then return held end
for i = last + 1, #ARGV, 2 do changed = changed or redis.call('HGET', KEYS[1], ARGV[i]) ~= ARGV[i + 1] end
if changed then redis.call('HSET', KEYS[1], 'changed', string.format('%.0f', now)) end
for i = 5, last, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now) .. ' ' .. ARGV[3] .. ' ' .. ARGV[i + 1])
end
for i = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local renewed = string.match(fields[i + 1], '^(%d+) ')
  -- pcall: an error after the writes would be a reply as if nothing was written.
  if renewed and now - renewed > tonumber(ARGV[2]) then redis.pcall('HDEL', KEYS[1], fields[i]) end
end
return held
"""


class AnnouncedEngine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An engine and its state as its launcher reports them; None is unknown.

    - `url`: where routers reach it. `max_model_len` in tokens.
    - `capacity`: the share of `max_in_flight` that routers may use, more than 0, at most 1.
    - `temperature_celsius`, `power_watts`: of its GPUs, the highest temperature and the sum of the power.
    - `restarts`: those by the watchdog since the start of the launcher, by reason.
    """

    name: str
    model: str
    task: EngineTask
    url: str
    served_model: str
    max_model_len: int | None = None
    max_in_flight: int | None = None
    has_draft: bool = False
    capacity: float = 1.0
    temperature_celsius: float | None = None
    power_watts: float | None = None
    restarts: dict[str, int] = {}


class ModelRevision(msgspec.Struct, frozen=True, kw_only=True):
    """A model's revision since a switch. `configured`: its revision in the configuration at that time.

    It holds only while the configuration has that revision still, so that a later change of the configuration counts.
    """

    revision: str
    configured: str


class Fleet(msgspec.Struct, frozen=True):
    """The announced engines by name, and the switched models' revisions."""

    engines: Mapping[str, AnnouncedEngine] = {}
    revisions: Mapping[str, ModelRevision] = {}


def write_command(
    owner: str,
    engines: Iterable[AnnouncedEngine] = (),
    *,
    withdrawn: Iterable[str] = (),
    revisions: Mapping[str, ModelRevision] | None = None,
) -> Command:
    """Announces and withdraws engines, and sets the revisions of models, all in one step.

    The reply is a list of fields that other owners hold; if it is not empty, nothing was written.
    """
    encode = msgspec.json.encode
    values = [(_ENGINE_FIELD + engine.name, encode(engine)) for engine in engines]
    values += [(_ENGINE_FIELD + name, _WITHDRAWN) for name in withdrawn]
    others = [(_MODEL_FIELD + name, encode(revision)) for name, revision in (revisions or {}).items()]
    arguments = [argument for pair in (*values, *others) for argument in pair]
    return (
        "EVAL", _WRITE_SCRIPT, 1, ANNOUNCEMENTS_KEY, round(LEASE * 1e6), _RETENTION * 10**6, owner, len(values),
        *arguments,
    )  # fmt: skip


def held_by_others(reply: Sequence[bytes]) -> list[str]:
    """The engines in the reply to `write_command`."""
    return [field.decode("utf-8", "replace").removeprefix(_ENGINE_FIELD) for field in reply]


def read_command() -> Command:
    return ("HGETALL", ANNOUNCEMENTS_KEY)


def read_changed_command() -> Command:
    return ("HGET", ANNOUNCEMENTS_KEY, _CHANGED_FIELD)


def read_held_command() -> Command:
    """For a reader that reads once: it judges the leases by Redis' clock."""
    return ("EVAL", "return {redis.call('TIME')[1], redis.call('HGETALL', KEYS[1])}", 1, ANNOUNCEMENTS_KEY)


class _StoredEngine(msgspec.Struct, frozen=True):
    renewed_at: bytes
    engine: AnnouncedEngine | None  # None: withdrawn


def decode_engines(reply: Any, warn: Callable[[str], None] = log.warning) -> dict[str, _StoredEngine]:
    """The engines in the reply to `read_command`; invalid ones are ignored, and `warn` gets a line about them."""
    engines: dict[str, _StoredEngine] = {}
    for field, value in _pairs(reply):
        if not field.startswith(_ENGINE_FIELD):
            continue
        stored = _decode_engine(field.removeprefix(_ENGINE_FIELD), value)
        if stored is None:
            warn("ignored an announced engine in Redis that cannot be decoded")
        elif len(engines) < MAX_ENGINES:
            engines[field.removeprefix(_ENGINE_FIELD)] = stored
    return engines


def decode_revisions(reply: Any, warn: Callable[[str], None] = log.warning) -> dict[str, ModelRevision]:
    revisions = {}
    for field, value in _pairs(reply):
        if field.startswith(_MODEL_FIELD) and len(value) <= _MAX_VALUE:
            try:
                revisions[field.removeprefix(_MODEL_FIELD)] = msgspec.json.decode(value, type=ModelRevision)
            except (msgspec.DecodeError, UnicodeDecodeError):
                warn("ignored a model's revision in Redis that cannot be decoded")
    return revisions


def decode_fleet(reply: Any) -> Fleet:
    """The fleet in the reply to `read_held_command`."""
    seconds, pairs = reply
    oldest = 1e6 * (int(seconds) - LEASE)
    engines = {
        name: stored.engine
        for name, stored in decode_engines(pairs).items()
        if stored.engine is not None
        and stored.renewed_at.isdigit()
        and len(stored.renewed_at) <= _MAX_DIGITS
        and int(stored.renewed_at) >= oldest
    }
    return Fleet(engines, decode_revisions(pairs))


def _pairs(reply: Any) -> list[tuple[str, bytes]]:
    """Raises UnexpectedReplyError."""
    return sorted((field.decode("utf-8", "replace"), value) for field, value in hash_fields(reply).items())


def _decode_engine(name: str, value: bytes) -> _StoredEngine | None:
    renewed_at, _, rest = value.partition(b" ")
    body = rest.partition(b" ")[2]
    if body == _WITHDRAWN:
        return _StoredEngine(renewed_at, None)
    if len(body) > _MAX_VALUE:
        return None
    try:
        engine = msgspec.json.decode(body, type=AnnouncedEngine)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return _StoredEngine(renewed_at, engine) if engine.name == name and 0 < engine.capacity <= 1 else None


class _Lease(NamedTuple):
    """An announced engine as last read, and for how many seconds of reading it has not been renewed."""

    stored: _StoredEngine
    idle: float


class Announcements:
    """The announced engines, as this process knows them.

    - `fleet`: the engines whose leases hold. While Redis is down, it stays.
    - `on_change` is called with it whenever it changes.
    """

    def __init__(
        self,
        pipeline: RedisPipeline,
        on_change: Callable[[Fleet], None],
        *,
        clock: Callable[[], float],
        redis_clock: Callable[[], float],
        previous: "Announcements | None" = None,
    ) -> None:
        """`clock`: monotonic seconds. `redis_clock`: seconds since the epoch by Redis' clock.

        `previous`: the object that reads another Redis, whose state is taken over.
        """
        self._pipeline = pipeline
        self._on_change = on_change
        self._clock = clock
        self._redis_clock = redis_clock
        self._warnings: set[str] = set()  # those that are logged; the hash is read every few seconds
        self._changed: bytes | None = None  # the field `changed` as last read, with the rest
        self._leases: dict[str, _Lease] = dict(previous._leases) if previous is not None else {}  # noqa: SLF001 - its own kind
        self._read_at: float | None = previous._read_at if previous is not None else None  # noqa: SLF001 - as above
        self.fleet: Fleet = previous.fleet if previous is not None else Fleet()

    async def try_refresh(self) -> None:
        try:
            await self.refresh()
        except RedisDownError:
            log.debug("Redis is down: the announced engines stay as last read")

    async def try_apply_change(self) -> None:
        """To be called when the hash has changed: reads it, unless only leases were renewed."""
        try:
            (changed,) = await self._pipeline.execute(read_changed_command())
            if changed is None or changed != self._changed:
                await self.refresh()
        except RedisDownError:
            log.debug("Redis is down: the announced engines stay as last read")

    async def refresh(self) -> None:
        """Reads the hash. Raises RedisDownError."""
        (reply,) = await self._pipeline.execute(read_command())
        if isinstance(reply, RedisBackendError):  # the server of a cluster that holds the key is down
            raise RedisDownError
        if isinstance(reply, Exception):  # a value of another type at our key, or no permission to read it
            self._log_new_warnings({f"cannot read the announced engines: {reply}"})
            return
        fields = dict(self._pipeline.decode(_pairs, reply))
        now = self._clock()
        gap = min(now - self._read_at, _MAX_GAP) if self._read_at is not None else 0.0
        self._read_at = now
        warnings: set[str] = set()
        self._changed = fields.get(_CHANGED_FIELD)
        self._update_leases(decode_engines(reply, warnings.add), gap)
        # Revisions are kept like engines: a Redis that was emptied must not bring back answers of the old revision.
        revisions = {**self.fleet.revisions, **decode_revisions(reply, warnings.add)}
        self._log_new_warnings(warnings)
        fleet = Fleet(self._held_engines(), revisions)
        if fleet != self.fleet:
            self.fleet = fleet
            self._on_change(fleet)

    def _log_new_warnings(self, warnings: set[str]) -> None:
        for line in sorted(warnings - self._warnings):
            log.warning("%s", line)
        self._warnings = warnings

    def _update_leases(self, stored: Mapping[str, _StoredEngine], gap: float) -> None:
        leases = {}
        for name in {*self._leases, *stored}:
            known, new = self._leases.get(name), stored.get(name)
            if new is not None and known is None:
                leases[name] = _Lease(new, self._age(new))
            elif new is not None and known is not None and new != known.stored:
                leases[name] = _Lease(new, 0.0)
            elif known is not None and (new is not None or known.idle + gap < LEASE):
                # An engine that is in Redis stays known after its lease, or it would count as a new one.
                leases[name] = _Lease(known.stored, known.idle + gap)
        self._leases = leases

    def _age(self, stored: _StoredEngine) -> float:
        renewed_at = stored.renewed_at
        is_time = renewed_at.isdigit() and len(renewed_at) <= _MAX_DIGITS
        return max(0.0, self._redis_clock() - int(renewed_at) / 1e6) if is_time else LEASE

    def _held_engines(self) -> dict[str, AnnouncedEngine]:
        held = {}
        for name, lease in sorted(self._leases.items()):
            if lease.stored.engine is not None and lease.idle < LEASE:
                held[name] = lease.stored.engine
            elif lease.stored.engine is not None and name in self.fleet.engines:
                log.warning("the announcement of engine %s is dropped: its launcher has not renewed it", name)
        return held
