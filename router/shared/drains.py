"""Which engines are drained, in every router at once.

    rh:1:drain:engines     a hash: an engine's name, and `drained` or `resumed` with the time of that

A drained engine gets no new work; what it works on goes on to its end. While Redis is away, the last known state holds,
and what is changed at a router holds there; Redis is told once it is back.

Theory of operation. That an engine is not in the hash means that Redis does not know, not that it was resumed: Redis
may have been emptied, or have evicted the key. So to resume an engine is written down as well. Of two things that are
said of one engine the later counts. Each router tells Redis what it knows and Redis does not, whenever it reads the
hash. Times are those of Redis' clock, in milliseconds; each change is later than the one that it replaces, whatever the
clock says.
"""

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from router.core.cache.redis_keys import DRAINS_KEY
from router.net.redis.commands import Command
from router.net.redis.errors import RedisBackendError
from router.net.redis.pipeline import RedisDownError, RedisPipeline

log = logging.getLogger("roundhouse.engines")

_DRAINED: Final = "drained"
_RESUMED: Final = "resumed"

# ARGV: an engine, the state that it is to have, and the time of what the caller knows of it.
_CHANGE_SCRIPT: Final = """
local there = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local state, at = string.match(there, '^(%a+) (%d+)$')
if state == ARGV[2] then return 0 end
local now = redis.call('TIME')
now = math.max(now[1] * 1000 + math.floor(now[2] / 1000), (tonumber(at) or 0) + 1, ARGV[3] + 1)
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now))
"""

# ARGV: an engine, and its state and time as the caller knows them.
_RESTORE_SCRIPT: Final = """
local there = redis.call('HGET', KEYS[1], ARGV[1]) or ''
local _, at = string.match(there, '^(%a+) (%d+)$')
if (tonumber(at) or 0) >= tonumber(ARGV[3]) then return 0 end
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
"""


class DrainState(NamedTuple):
    """Whether an engine is drained, and since when that is known, in milliseconds of Redis' clock."""

    drained: bool
    changed_at: int


def drain_command(engine: str, known_at: int = 0) -> Command:
    """Tells Redis that an engine is drained. `known`: the time of the state that the caller knows, which is earlier."""
    return ("EVAL", _CHANGE_SCRIPT, 1, DRAINS_KEY, engine, _DRAINED, known_at)


def resume_command(engine: str, known_at: int = 0) -> Command:
    """Tells Redis that an engine is drained no longer."""
    return ("EVAL", _CHANGE_SCRIPT, 1, DRAINS_KEY, engine, _RESUMED, known_at)


def read_drains_command() -> Command:
    """Asks Redis for the states of all engines; see `read_states`."""
    return ("HGETALL", DRAINS_KEY)


def decode_drains(reply: Any) -> dict[str, DrainState]:
    """The reply to `read_command`; what is not understood is left out."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=False)
    states = {}
    for name, value in pairs:
        state, _, at = value.partition(b" ")
        if state in (b"drained", b"resumed") and at.isdigit() and len(at) < 16:
            states[name.decode("utf-8", "replace")] = DrainState(state == b"drained", int(at))
        else:
            log.warning("what Redis says of a drained engine is not understood, and passed over")
    return states


class Drains:
    """The drained engines, as this process knows them.

    - `names`: of them; kept while Redis is away, and where it was emptied. An engine that nobody has may be among them.
    - `told` is called with them whenever they are other than before.
    - What is drained or resumed here holds here at once. `drain` and `resume` say whether Redis knows too; where it
      does not, it is told before it is next asked: that is `untold`, by name, and grows with engines alone.
    """

    def __init__(
        self, pipeline: RedisPipeline, on_change: Callable[[frozenset[str]], None], previous: "Drains | None" = None
    ) -> None:
        """`old`: in whose place these are to go on, as if nothing had happened."""
        self._pipeline = pipeline
        self._on_change = on_change
        self._states: dict[str, DrainState] = dict(previous._states) if previous is not None else {}  # noqa: SLF001 - its own kind
        self.unpublished: dict[str, bool] = dict(previous.unpublished) if previous is not None else {}
        self.names: frozenset[str] = previous.names if previous is not None else frozenset()

    async def drain(self, engine: str) -> bool:
        return await self._set_drained(engine, drained=True)

    async def resume(self, engine: str) -> bool:
        return await self._set_drained(engine, drained=False)

    async def try_refresh(self) -> None:
        """They may have changed, or Redis is back: reads them again."""
        try:
            await self.refresh()
        except RedisDownError:
            log.debug("the drained engines cannot be read while Redis is away; they stay as they are")

    async def refresh(self) -> None:
        """Reads them again, after Redis was told what it does not know. Raises RedisDownError."""
        untold = dict(self.unpublished)
        *told, found = await self._pipeline.execute(
            *[self._pending_command(name) for name in untold], read_drains_command()
        )
        for name, reply in zip(untold, told, strict=True):
            if not isinstance(reply, Exception) and self.unpublished.get(name) is untold[name]:
                del self.unpublished[name]
        if isinstance(found, RedisBackendError):  # of a cluster, the server that holds the key is away
            raise RedisDownError
        if isinstance(found, Exception):  # a wrong type at our key, or no right to read it
            log.warning("the drained engines cannot be read: %s", found)
            return
        states = decode_drains(found)
        self._restore({name: known for name, known in self._states.items() if _is_newer(known, states.get(name))})
        for name, state in states.items():
            if _is_newer(state, self._states.get(name)):
                self._states[name] = state
        self._update_names()

    def _pending_command(self, engine: str) -> Command:
        known = self._states.get(engine, _UNKNOWN).changed_at
        return drain_command(engine, known) if self.unpublished[engine] else resume_command(engine, known)

    def _restore(self, missing: dict[str, DrainState]) -> None:
        """Tells Redis what it has lost."""
        if not missing:
            return
        log.warning("Redis has lost which engines are drained; it is told again")
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
        drained.update(self.unpublished)  # what Redis is still to be told is newer than what it says
        known = frozenset([name for name, is_drained in drained.items() if is_drained])
        if known != self.names:
            self.names = known
            self._on_change(known)


_UNKNOWN: Final = DrainState(drained=False, changed_at=0)


def _is_newer(state: DrainState, other: DrainState | None) -> bool:
    return other is None or state.changed_at > other.changed_at
