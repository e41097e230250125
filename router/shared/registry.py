"""Which engines are drained, in every router at once.

    rh:1:drain:engines     a hash: an engine's name, and since when it has been drained, in seconds since the epoch

A drained engine gets no new work; what it works on goes on to its end. While Redis is away, the last known state holds,
and what is changed at a router holds there; Redis is told once it is back.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from router.core.names import DRAINS
from router.shared.line import Line, RedisDownError
from router.shared.link import Command

log = logging.getLogger("roundhouse.engines")


def drain_command(engine: str, now: float) -> Command:
    """Tells Redis that an engine is drained. `now`: since when, in seconds since the epoch."""
    return ("HSETNX", DRAINS, engine, int(now))


def resume_command(engine: str) -> Command:
    """Tells Redis that an engine is drained no longer."""
    return ("HDEL", DRAINS, engine)


class Drains:
    """The drained engines, as this process knows them.

    - `names`: of them; kept while Redis is away. An engine that nobody has may be among them.
    - `told` is called with them whenever they are other than before.
    - What is drained or resumed here holds here at once. `drain` and `resume` say whether Redis knows too; where it
      does not, it is told before it is next asked: that is `untold`, by name, and grows with engines alone.
    """

    def __init__(self, line: Line, told: Callable[[frozenset[str]], None], old: "Drains | None" = None) -> None:
        """`old`: in whose place these are to go on, as if nothing had happened."""
        self._line = line
        self._told = told
        self.untold: dict[str, bool] = dict(old.untold) if old is not None else {}
        self.names: frozenset[str] = old.names if old is not None else frozenset()

    async def drain(self, engine: str) -> bool:
        return await self._change(engine, drained=True)

    async def resume(self, engine: str) -> bool:
        return await self._change(engine, drained=False)

    async def changed(self) -> None:
        """They may have changed, or Redis is back: reads them again."""
        untold, now = dict(self.untold), time.time()
        commands = [drain_command(name, now) if drained else resume_command(name) for name, drained in untold.items()]
        try:
            *told, found = await self._line.ask(*commands, ("HKEYS", DRAINS))
        except RedisDownError:
            log.debug("the drained engines cannot be read while Redis is away; they stay as they are")
            return
        for name, reply in zip(untold, told, strict=True):
            if not isinstance(reply, Exception) and self.untold.get(name) is untold[name]:
                del self.untold[name]
        if isinstance(found, Exception):  # a wrong type at our key, or no right to read it
            log.warning("the drained engines cannot be read: %s", found)
            return
        self._set({name.decode("utf-8", "replace") for name in found})

    async def _change(self, engine: str, *, drained: bool) -> bool:
        self.untold[engine] = drained
        self._set(self.names)
        await self.changed()
        return engine not in self.untold

    def _set(self, names: Iterable[Any]) -> None:
        known = frozenset(names)
        # What Redis is still to be told is newer than what it says.
        known = (known | {n for n, drained in self.untold.items() if drained}) - {
            n for n, drained in self.untold.items() if not drained
        }
        if known != self.names:
            self.names = known
            self._told(known)
