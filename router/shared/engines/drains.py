"""Which engines are drained, shared by all routers.

    rh:1:drain:engines     a hash: an engine's name -> `drained` or `resumed`, and the time of the change

A drained engine gets no new requests; its running requests finish. While Redis is down, the last known state holds. A
change made at a router meanwhile holds there, and is sent to Redis once it is up.

Theory of operation. An engine that is missing in the hash is in an unknown state, not resumed: Redis may have been
emptied, or may have evicted the key. So `resumed` is stored explicitly. Of two states of an engine the later one
counts. Whenever a router reads the hash, it writes the states that it knows and Redis lacks. Times are those of Redis'
clock, in milliseconds. Each change gets a later time than the state that it replaces, even if the clock was set back.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from router.core.cache.redis_keys import DRAINS_KEY
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.net.redis.replies import hash_fields

log = logging.getLogger("roundhouse.engines")

_DRAINED: Final = "drained"
_RESUMED: Final = "resumed"

# ARGV: an engine, its new state, and the time of the state that the caller knows.
_CHANGE_SCRIPT: Final = """
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local state, changed_at = string.match(stored, '^(%a+) (%d+)$')
if state == ARGV[2] then return 0 end
local now = redis.call('TIME')
now = math.max(now[1] * 1000 + math.floor(now[2] / 1000), (tonumber(changed_at) or 0) + 1, ARGV[3] + 1)
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now))
"""

# ARGV: an engine, and the state and time that the caller knows. A state in Redis that is as late or later stays.
_RESTORE_SCRIPT: Final = """
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local _, changed_at = string.match(stored, '^(%a+) (%d+)$')
if (tonumber(changed_at) or 0) >= tonumber(ARGV[3]) then return 0 end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
"""


class DrainState(NamedTuple):
    """Whether an engine is drained, and the time of that change in milliseconds of Redis' clock."""

    drained: bool
    changed_at: int


def drain_command(engine: str, known_at: int = 0) -> Command:
    """Marks an engine as drained. `known_at`: the time of the state that the caller knows; the new time is later."""
    return ("EVAL", _CHANGE_SCRIPT, 1, DRAINS_KEY, engine, _DRAINED, known_at)


def resume_command(engine: str, known_at: int = 0) -> Command:
    return ("EVAL", _CHANGE_SCRIPT, 1, DRAINS_KEY, engine, _RESUMED, known_at)


def read_drains_command() -> Command:
    return ("HGETALL", DRAINS_KEY)


def decode_drains(reply: Any) -> dict[str, DrainState]:
    """Raises UnexpectedReplyError."""
    states = {}
    for name, value in hash_fields(reply).items():
        state, _, changed_at = value.partition(b" ")
        if state in (b"drained", b"resumed") and changed_at.isdigit() and len(changed_at) < 16:
            states[name.decode("utf-8", "replace")] = DrainState(state == b"drained", int(changed_at))
        else:
            log.warning("ignored a drain state in Redis that cannot be decoded")
    return states


class Drains:
    """The drained engines, as this process knows them.

    - `names`: the drained engines. They are kept while Redis is down and when it was emptied, and may include engines
      that are not configured.
    - `on_change` is called with `names` whenever they change.
    - `drain` and `resume` take effect in this process at once, and return whether Redis has the change. If it has not,
      the change is in `unpublished`, by the engine's name, and is sent before the next read.
    """

    def __init__(
        self, pipeline: RedisPipeline, on_change: Callable[[frozenset[str]], None], previous: "Drains | None" = None
    ) -> None:
        """`previous`: that of another Redis, before a reload. They share the changes until `take_over`."""
        self._pipeline = pipeline
        self._on_change = on_change
        self._states: dict[str, DrainState] = previous._states if previous is not None else {}  # noqa: SLF001 - its own kind
        self.unpublished: dict[str, bool] = previous.unpublished if previous is not None else {}
        self.names: frozenset[str] = previous.names if previous is not None else frozenset()

    def take_over(self, previous: "Drains") -> None:
        """From now on, this one publishes the changes. `previous` may have got some since this one was created."""
        # It goes on reading until its last request has ended, and would publish a change again that was reversed since.
        previous.unpublished = {}
        self._update_names()

    async def drain(self, engine: str) -> bool:
        return await self._set_drained(engine, drained=True)

    async def resume(self, engine: str) -> bool:
        return await self._set_drained(engine, drained=False)

    async def try_refresh(self) -> None:
        try:
            await self.refresh()
        except RedisDownError:
            log.debug("Redis is down: the drained engines stay as last read")

    async def refresh(self) -> None:
        """Sends the unpublished changes, then reads all states. Raises RedisDownError."""
        unpublished = dict(self.unpublished)
        *results, drains = await self._pipeline.execute(
            *[self._pending_command(name) for name in unpublished], read_drains_command()
        )
        # A change that was reversed during the round trip stays unpublished.
        for name, reply in zip(unpublished, results, strict=True):
            if not isinstance(reply, Exception) and self.unpublished.get(name) is unpublished[name]:
                del self.unpublished[name]
        if isinstance(drains, RedisBackendError):  # the server of a cluster that holds the key is down
            raise RedisDownError
        if isinstance(drains, Exception):  # a value of another type at our key, or no permission to read it
            log.warning("cannot read the drained engines: %s", drains)
            return
        states = self._pipeline.decode(decode_drains, drains)
        self._restore({name: known for name, known in self._states.items() if _is_newer(known, states.get(name))})
        for name, state in states.items():
            if _is_newer(state, self._states.get(name)):
                self._states[name] = state
        self._update_names()

    def _pending_command(self, engine: str) -> Command:
        known_at = self._states.get(engine, _UNKNOWN).changed_at
        return drain_command(engine, known_at) if self.unpublished[engine] else resume_command(engine, known_at)

    def _restore(self, missing: dict[str, DrainState]) -> None:
        if not missing:
            return
        log.warning("Redis has lost the drained engines; writing them again")
        commands = [
            ("EVAL", _RESTORE_SCRIPT, 1, DRAINS_KEY, name, _DRAINED if state.drained else _RESUMED, state.changed_at)
            for name, state in missing.items()
        ]
        self._pipeline.send(*commands)

    async def _set_drained(self, engine: str, *, drained: bool) -> bool:
        self.unpublished[engine] = drained
        self._update_names()
        await self.try_refresh()
        return engine not in self.unpublished

    def _update_names(self) -> None:
        drained = {name: state.drained for name, state in self._states.items()}
        drained.update(self.unpublished)  # a change that Redis does not have yet is newer than Redis' state
        names = frozenset([name for name, is_drained in drained.items() if is_drained])
        if names != self.names:
            self.names = names
            self._on_change(names)


_UNKNOWN: Final = DrainState(drained=False, changed_at=0)


def _is_newer(state: DrainState, other: DrainState | None) -> bool:
    return other is None or state.changed_at > other.changed_at
