"""The breakers of all engines, as router processes share them through Redis.

Theory of operation. Each process counts for itself, and is asked without waiting. When a breaker opens or closes, its
process writes that to a key; the others are told by Redis that the key has changed (router.net.redis.listener), and
read it. What was read last counts. A key that is not there says nothing, so it may lapse and be lost: whoever has heard
of it holds on to it, and it ends by the clock. While Redis is away, each process has its own breakers.

A process counts by its monotonic clock, which nobody can set; what it writes to Redis is in Redis' time.

The one request of a half-open breaker is sent by whoever has the claim on it, of all processes.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from router.core.cache.redis_keys import breaker_of, engine_of, probe_of
from router.core.resilience.breaker import Breaker, Limits, State
from router.net.redis.clock import RedisClock
from router.net.redis.commands import later
from router.net.redis.pipeline import Line, RedisDownError, Replies
from router.shared.scripts import DELETE_IF_SAME

log = logging.getLogger("roundhouse.breakers")

LEAST_LEASE: Final = 2.0
"""Seconds that a probe should have at least to find something out."""

_KEPT: Final = 60.0  # seconds for which a key stays after there is nothing in it that still holds
_ASK_AGAIN: Final = 0.5  # seconds for which another process' claim is believed without asking
_UNTIL_MEASURED: Final = 2.0  # seconds: what a breaker that is open for pressure may take to close, as a guess

_pack = msgspec.json.Encoder().encode
_unpack = msgspec.json.Decoder(Breaker).decode


class Breakers:
    """Of each engine that is known, a breaker.

    - A breaker that opens or closes in one process does so in all, within moments, as long as Redis answers.
    - Of a half-open breaker, `claim_probe` is true to one process at a time, until it calls `release_probe`.
    - Nothing here fails or waits for longer than Redis' timeout because Redis does.
    """

    def __init__(
        self, line: Line, limits: Limits, *, known: Callable[[], Collection[str]], lease: float, clock: RedisClock
    ) -> None:
        """`known`: the engines that there are; `lease`: seconds after which a claim is taken to be lost."""
        self._line = line
        self._limits = limits
        self._known = known
        self._lease = lease
        self._redis_clock = clock
        self._clock = clock.monotonic
        self._me = secrets.token_hex(6)
        self._breakers: dict[str, Breaker] = {}
        self._claimed: dict[str, float] = {}  # until when the claim on an engine's probe is not asked for

    def inherit(self, old: "Breakers") -> None:
        """Takes over what the breakers of another configuration know of the engines that are still there."""
        known = old._breakers.items()  # noqa: SLF001 - one of its own kind
        self._breakers = {name: breaker for name, breaker in known if name in self._known()}

    # -- what is known ----------------------------------------------------------------------------------------------

    def state(self, engine: str) -> State:
        breaker = self._breakers.get(engine)
        return breaker.state(self._clock()) if breaker is not None else State.CLOSED

    def under_pressure(self, engine: str) -> bool:
        """Whether its KV cache is full, or was and has not emptied enough since."""
        breaker = self._breakers.get(engine)
        return breaker is not None and breaker.under_pressure(self._clock())

    def shut_for(self, engine: str) -> float:
        """Seconds until it may take work again, as far as that is known."""
        breaker, now = self._breakers.get(engine), self._clock()
        if breaker is None or breaker.state(now) is State.CLOSED:
            return 0.0
        cooling = max(0.0, breaker.until - now) if breaker.until is not None else 0.0
        return max(cooling, _UNTIL_MEASURED) if breaker.under_pressure(now) else cooling

    # -- what happens -----------------------------------------------------------------------------------------------

    def failed(self, engine: str, *, probe: bool = False) -> None:
        self._turn(engine, self._get(engine).failed(self._clock(), self._limits, probe=probe))

    def succeeded(self, engine: str, *, probe: bool = False) -> None:
        breaker = self._breakers.get(engine)
        if breaker is not None:  # to one that nothing is known of, it is no news
            self._turn(engine, breaker.succeeded(probe=probe))

    def revived(self, engine: str) -> None:
        self._turn(engine, self._get(engine).revived(self._clock()))

    def measured(self, engine: str, usage: float | None) -> None:
        self._turn(engine, self._get(engine).measured(usage, self._clock(), self._limits))

    def _get(self, engine: str) -> Breaker:
        return self._breakers.get(engine) or _NEW

    def _turn(self, engine: str, breaker: Breaker) -> None:
        before = self._get(engine)
        if breaker is before:
            return
        self._set(engine, breaker)
        if breaker.tells(before):
            log.warning("engine %s: its breaker is %s", engine, self._describe(breaker))
            self._tell(engine, breaker)

    def _set(self, engine: str, breaker: Breaker) -> None:
        if breaker == _NEW:
            self._breakers.pop(engine, None)
        else:
            self._breakers[engine] = breaker

    def _describe(self, breaker: Breaker) -> str:
        now = self._clock()
        return breaker.state(now).value + (", for pressure" if breaker.under_pressure(now) else "")

    def _tell(self, engine: str, breaker: Breaker) -> None:
        holds = max((at - self._clock() for at in (breaker.until, breaker.pressed) if at is not None), default=0.0)
        life = int(1000 * (max(0.0, holds) + _KEPT))
        try:
            self._line.tell(("SET", breaker_of(engine), _pack(breaker.moved(self._redis_clock.shared)), "PX", life))
        except RedisDownError:
            log.debug("the others will find out for themselves while Redis is away")

    # -- the one request of a half-open breaker ---------------------------------------------------------------------

    async def claim_probe(self, engine: str) -> bool:
        """Whether this process may send it, now."""
        now = self._clock()
        if self._claimed.get(engine, 0.0) > now:
            return False
        self._claimed[engine] = now + self._lease
        try:
            # Who had the claim before may have found something out, which is written by the time that it is free.
            taken, found = await self._line.ask(
                ("SET", probe_of(engine), self._me, "NX", "PX", int(1000 * self._lease)),
                later(("GET", breaker_of(engine))),
            )
        except RedisDownError:
            return True
        except asyncio.CancelledError:
            self.release_probe(engine)
            raise
        self._take_over(engine, found)
        if taken is None:
            self._claimed[engine] = now + _ASK_AGAIN
            return False
        if self.state(engine) is State.OPEN:
            self.release_probe(engine)
            return False
        return True

    def release_probe(self, engine: str) -> None:
        """What the probe has shown has been told by now."""
        self._claimed.pop(engine, None)
        try:
            self._line.tell(later(("EVAL", DELETE_IF_SAME, 1, probe_of(engine), self._me)))
        except RedisDownError:
            log.debug("the claim lapses by itself while Redis is away")

    # -- what is heard ----------------------------------------------------------------------------------------------

    def listening(self) -> None:
        """Something may have changed of which nobody told."""
        self._read(list(self._known()))

    def changed(self, key: str) -> None:
        """A breaker's key has changed, or that of a claim."""
        engine = engine_of(key)
        if engine in self._known():
            self._read([engine])

    def _read(self, engines: list[str]) -> None:
        if not engines:
            return
        try:
            self._line.tell(
                *[("GET", breaker_of(engine)) for engine in engines],
                told=lambda replies: self._have_read(engines, replies),
            )
        except RedisDownError:
            log.debug("the breakers will be read when Redis is back")

    def _have_read(self, engines: list[str], replies: Replies | None) -> None:
        for engine, found in zip(engines, replies or (), strict=False):
            self._take_over(engine, found)

    def _take_over(self, engine: str, found: object) -> None:
        if not isinstance(found, bytes):
            return
        try:
            told = _unpack(found)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            log.warning("engine %s: what Redis has of its breaker is not understood, and passed over", engine)
            return
        self._set(engine, self._get(engine).heard(told.moved(self._redis_clock.own), self._clock(), self._limits))


_NEW: Final = Breaker()
