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

from router.core.cache.redis_keys import breaker_engine, breaker_key, probe_key
from router.core.resilience.breaker import BreakerPolicy, BreakerState, EngineBreaker
from router.net.redis.clock import RedisClock
from router.net.redis.commands import after_previous
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.shared.scripts import DELETE_IF_SAME

log = logging.getLogger("roundhouse.breakers")

MIN_PROBE_LEASE: Final = 2.0
"""Seconds that a probe should have at least to find something out."""

_KEY_RETENTION: Final = 60.0  # seconds for which a key stays after there is nothing in it that still holds
_CLAIM_RETRY_DELAY: Final = 0.5  # seconds for which another process' claim is believed without asking
_PRESSURE_RETRY_AFTER: Final = 2.0  # seconds: what a breaker that is open for pressure may take to close, as a guess

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EngineBreaker).decode


class Breakers:
    """Of each engine that is known, a breaker.

    - A breaker that opens or closes in one process does so in all, within moments, as long as Redis answers.
    - Of a half-open breaker, `claim_probe` is true to one process at a time, until it calls `release_probe`.
    - Nothing here fails or waits for longer than Redis' timeout because Redis does.
    """

    def __init__(
        self,
        pipeline: RedisPipeline,
        policy: BreakerPolicy,
        *,
        engine_names: Callable[[], Collection[str]],
        probe_lease: float,
        clock: RedisClock,
    ) -> None:
        """`known`: the engines that there are; `lease`: seconds after which a claim is taken to be lost."""
        self._pipeline = pipeline
        self._policy = policy
        self._engine_names = engine_names
        self._probe_lease = probe_lease
        self._redis_clock = clock
        self._clock = clock.monotonic
        self._process_id = secrets.token_hex(6)
        self._breakers: dict[str, EngineBreaker] = {}
        self._claim_retry_at: dict[str, float] = {}  # until when the claim on an engine's probe is not asked for

    def inherit(self, previous: "Breakers") -> None:
        """Takes over what the breakers of another configuration know of the engines that are still there."""
        known = previous._breakers.items()  # noqa: SLF001 - one of its own kind
        self._breakers = {name: breaker for name, breaker in known if name in self._engine_names()}

    # -- what is known ----------------------------------------------------------------------------------------------

    def state(self, engine: str) -> BreakerState:
        breaker = self._breakers.get(engine)
        return breaker.state(self._clock()) if breaker is not None else BreakerState.CLOSED

    def under_pressure(self, engine: str) -> bool:
        """Whether its KV cache is full, or was and has not emptied enough since."""
        breaker = self._breakers.get(engine)
        return breaker is not None and breaker.under_pressure(self._clock())

    def retry_after(self, engine: str) -> float:
        """Seconds until it may take work again, as far as that is known."""
        breaker, now = self._breakers.get(engine), self._clock()
        if breaker is None or breaker.state(now) is BreakerState.CLOSED:
            return 0.0
        cooling = max(0.0, breaker.until - now) if breaker.until is not None else 0.0
        return max(cooling, _PRESSURE_RETRY_AFTER) if breaker.under_pressure(now) else cooling

    # -- what happens -----------------------------------------------------------------------------------------------

    def on_failure(self, engine: str, *, probe: bool = False) -> None:
        self._update(engine, self._get(engine).on_failure(self._clock(), self._policy, probe=probe))

    def on_success(self, engine: str, *, probe: bool = False) -> None:
        breaker = self._breakers.get(engine)
        if breaker is not None:  # to one that nothing is known of, it is no news
            self._update(engine, breaker.on_success(probe=probe))

    def on_recovered(self, engine: str) -> None:
        self._update(engine, self._get(engine).on_recovered(self._clock()))

    def on_kv_usage(self, engine: str, usage: float | None) -> None:
        self._update(engine, self._get(engine).on_kv_usage(usage, self._clock(), self._policy))

    def _get(self, engine: str) -> EngineBreaker:
        return self._breakers.get(engine) or _INITIAL

    def _update(self, engine: str, breaker: EngineBreaker) -> None:
        before = self._get(engine)
        if breaker is before:
            return
        self._set(engine, breaker)
        if breaker.should_publish(before):
            log.warning("engine %s: its breaker is %s", engine, self._describe(breaker))
            self._publish(engine, breaker)

    def _set(self, engine: str, breaker: EngineBreaker) -> None:
        if breaker == _INITIAL:
            self._breakers.pop(engine, None)
        else:
            self._breakers[engine] = breaker

    def _describe(self, breaker: EngineBreaker) -> str:
        now = self._clock()
        return breaker.state(now).value + (", for pressure" if breaker.under_pressure(now) else "")

    def _publish(self, engine: str, breaker: EngineBreaker) -> None:
        holds = max((at - self._clock() for at in (breaker.until, breaker.pressed) if at is not None), default=0.0)
        life = int(1000 * (max(0.0, holds) + _KEY_RETENTION))
        try:
            self._pipeline.send(
                ("SET", breaker_key(engine), _encode(breaker.on_clock(self._redis_clock.to_redis_time)), "PX", life)
            )
        except RedisDownError:
            log.debug("the others will find out for themselves while Redis is away")

    # -- the one request of a half-open breaker ---------------------------------------------------------------------

    async def claim_probe(self, engine: str) -> bool:
        """Whether this process may send it, now."""
        now = self._clock()
        if self._claim_retry_at.get(engine, 0.0) > now:
            return False
        self._claim_retry_at[engine] = now + self._probe_lease
        try:
            # Who had the claim before may have found something out, which is written by the time that it is free.
            taken, found = await self._pipeline.execute(
                ("SET", probe_key(engine), self._process_id, "NX", "PX", int(1000 * self._probe_lease)),
                after_previous(("GET", breaker_key(engine))),
            )
        except RedisDownError:
            return True
        except asyncio.CancelledError:
            self.release_probe(engine)
            raise
        self._merge(engine, found)
        if taken is None:
            self._claim_retry_at[engine] = now + _CLAIM_RETRY_DELAY
            return False
        if self.state(engine) is BreakerState.OPEN:
            self.release_probe(engine)
            return False
        return True

    def release_probe(self, engine: str) -> None:
        """What the probe has shown has been told by now."""
        self._claim_retry_at.pop(engine, None)
        try:
            self._pipeline.send(after_previous(("EVAL", DELETE_IF_SAME, 1, probe_key(engine), self._process_id)))
        except RedisDownError:
            log.debug("the claim lapses by itself while Redis is away")

    # -- what is heard ----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Something may have changed of which nobody told."""
        self._fetch(list(self._engine_names()))

    def on_key_changed(self, key: str) -> None:
        """A breaker's key has changed, or that of a claim."""
        engine = breaker_engine(key)
        if engine in self._engine_names():
            self._fetch([engine])

    def _fetch(self, engines: list[str]) -> None:
        if not engines:
            return
        try:
            self._pipeline.send(
                *[("GET", breaker_key(engine)) for engine in engines],
                on_reply=lambda replies: self._on_fetched(engines, replies),
            )
        except RedisDownError:
            log.debug("the breakers will be read when Redis is back")

    def _on_fetched(self, engines: list[str], replies: Replies | None) -> None:
        for engine, found in zip(engines, replies or (), strict=False):
            self._merge(engine, found)

    def _merge(self, engine: str, reply: object) -> None:
        if not isinstance(reply, bytes):
            return
        try:
            told = _decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            log.warning("engine %s: what Redis has of its breaker is not understood, and passed over", engine)
            return
        self._set(
            engine, self._get(engine).merge(told.on_clock(self._redis_clock.to_monotonic), self._clock(), self._policy)
        )


_INITIAL: Final = EngineBreaker()
