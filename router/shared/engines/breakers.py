"""The engines' circuit breakers, shared by router processes through Redis.

Theory of operation. Each process counts failures by itself, and its breakers are read without waiting. When a breaker
opens or closes, the process writes its state to a key. The other processes get Redis' push that the key has changed
(router.net.redis.listener), read it, and merge it into their own state. A missing key means nothing, so it may expire
or be lost: a process that has read the state keeps it, and the state ends by the clock. While Redis is down, each
process has its own breakers.

A process counts by its monotonic clock, which cannot be set; the times that it writes are in Redis' time.

Of all processes, only the one that has the probe's claim sends the one request of a half-open breaker.
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

_MIN_PROBE_LEASE: Final = 2.0  # seconds that a probe has at least before its claim expires
_KEY_RETENTION: Final = 60.0  # seconds for which a key stays after the last time in it has passed
_CLAIM_RETRY_DELAY: Final = 0.5  # seconds after another process had the claim until it is requested again
_PRESSURE_RETRY_AFTER: Final = 2.0  # seconds; a guess of how long a breaker stays open for pressure

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(EngineBreaker).decode


class Breakers:
    """A breaker for each configured engine.

    - A breaker that opens or closes in one process soon does so in all processes, as long as Redis answers.
    - For a half-open breaker, `claim_probe` returns True in one process at a time, until it calls `release_probe`.
    - When Redis fails or is slow, no method fails, and none waits for longer than Redis' timeout.
    """

    def __init__(
        self,
        pipeline: RedisPipeline,
        policy: BreakerPolicy,
        *,
        engine_names: Callable[[], Collection[str]],
        clock: RedisClock,
        previous: "Breakers | None" = None,
    ) -> None:
        """`policy` may be replaced. `engine_names`: the configured engines. `previous`: those of another Redis."""
        self.policy = policy
        self._pipeline = pipeline
        self._engine_names = engine_names
        self._redis_clock = clock
        self._clock = clock.monotonic
        self._process_id = secrets.token_hex(6)
        self._breakers: dict[str, EngineBreaker] = dict(previous._breakers) if previous is not None else {}  # noqa: SLF001 - its own kind
        self._claim_retry_at: dict[str, float] = {}  # by engine: until when its probe's claim is not requested

    # -- state ------------------------------------------------------------------------------------------------------

    def state(self, engine: str) -> BreakerState:
        breaker = self._breakers.get(engine)
        return breaker.state(self._clock()) if breaker is not None else BreakerState.CLOSED

    def under_pressure(self, engine: str) -> bool:
        """Whether the engine's KV cache is above `open_above`, or was and is not below `close_below` yet."""
        breaker = self._breakers.get(engine)
        return breaker is not None and breaker.under_pressure(self._clock())

    def retry_after(self, engine: str) -> float:
        """Seconds until the engine may get requests again, as far as that is known."""
        breaker, now = self._breakers.get(engine), self._clock()
        if breaker is None or breaker.state(now) is BreakerState.CLOSED:
            return 0.0
        cooldown = max(0.0, breaker.until - now) if breaker.until is not None else 0.0
        return max(cooldown, _PRESSURE_RETRY_AFTER) if breaker.under_pressure(now) else cooldown

    # -- events -----------------------------------------------------------------------------------------------------

    def on_failure(self, engine: str, *, probe: bool = False) -> None:
        self._update(engine, self._get(engine).on_failure(self._clock(), self.policy, probe=probe))

    def on_success(self, engine: str, *, probe: bool = False) -> None:
        breaker = self._breakers.get(engine)
        if breaker is not None:  # without a breaker there are no failures to reset
            self._update(engine, breaker.on_success(probe=probe))

    def on_recovered(self, engine: str) -> None:
        self._update(engine, self._get(engine).on_recovered(self._clock()))

    def on_kv_usage(self, engine: str, usage: float | None) -> None:
        self._update(engine, self._get(engine).on_kv_usage(usage, self._clock(), self.policy))

    def _get(self, engine: str) -> EngineBreaker:
        return self._breakers.get(engine) or _INITIAL

    def _update(self, engine: str, breaker: EngineBreaker) -> None:
        before = self._get(engine)
        if breaker is before:
            return
        self._set(engine, breaker)
        if breaker.should_publish(before):
            log.warning("engine %s: breaker is %s", engine, self._describe(breaker))
            self._publish(engine, breaker)

    def _set(self, engine: str, breaker: EngineBreaker) -> None:
        if breaker == _INITIAL:  # as good as none: only engines with failures or pressure take up memory
            self._breakers.pop(engine, None)
        else:
            self._breakers[engine] = breaker

    def _describe(self, breaker: EngineBreaker) -> str:
        now = self._clock()
        return breaker.state(now).value + (", due to KV cache pressure" if breaker.under_pressure(now) else "")

    def _publish(self, engine: str, breaker: EngineBreaker) -> None:
        remaining = max((at - self._clock() for at in (breaker.until, breaker.pressed) if at is not None), default=0.0)
        ttl_ms = int(1000 * (max(0.0, remaining) + _KEY_RETENTION))
        try:
            self._pipeline.send(
                ("SET", breaker_key(engine), _encode(breaker.on_clock(self._redis_clock.to_redis_time)), "PX", ttl_ms)
            )
        except RedisDownError:
            log.debug("Redis is down: the breaker's state is not shared")

    # -- the probe: the one request of a half-open breaker ----------------------------------------------------------

    async def claim_probe(self, engine: str) -> bool:
        """Whether this process may send the probe now. If so, it must call `release_probe` when the probe ends."""
        now = self._clock()
        if self._claim_retry_at.get(engine, 0.0) > now:
            return False
        # Before the await: the other requests of this process must not request the claim a second time.
        # A long JSON response must not hold the only probe until its end: after this, another request may probe.
        lease = max(self.policy.cooldown, _MIN_PROBE_LEASE)
        self._claim_retry_at[engine] = now + lease
        try:
            # A former holder writes what its probe showed before it releases the claim. So the state is read after the
            # claim is taken.
            taken, state = await self._pipeline.execute(
                ("SET", probe_key(engine), self._process_id, "NX", "PX", int(1000 * lease)),
                after_previous(("GET", breaker_key(engine))),
            )
        except RedisDownError:
            return True  # without Redis each process sends a probe of its own
        except asyncio.CancelledError:
            self.release_probe(engine)
            raise
        self._merge(engine, state)
        if taken is None:
            self._claim_retry_at[engine] = now + _CLAIM_RETRY_DELAY
            return False
        if self.state(engine) is BreakerState.OPEN:  # the former holder's probe has failed
            self.release_probe(engine)
            return False
        return True

    def probe_is_claimed(self, engine: str) -> bool:
        """Whether `claim_probe` returns False for now, without a wait."""
        return self._claim_retry_at.get(engine, 0.0) > self._clock()

    def release_probe(self, engine: str) -> None:
        """To be called after the probe's result was reported, so that its state is written before the release."""
        self._claim_retry_at.pop(engine, None)
        try:
            self._pipeline.send(after_previous(("EVAL", DELETE_IF_SAME, 1, probe_key(engine), self._process_id)))
        except RedisDownError:
            log.debug("Redis is down: the probe's lease will expire")

    # -- Redis' pushes ----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reads all breakers; to be called when changes may have been missed, and when there are other engines."""
        names = self._engine_names()
        self._breakers = {name: breaker for name, breaker in self._breakers.items() if name in names}
        self._fetch(list(names))

    def on_key_changed(self, key: str) -> None:
        """Reads the breaker whose key has changed; keys of other kinds are ignored."""
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
            log.debug("Redis is down: the breakers will be read when it is up again")

    def _on_fetched(self, engines: list[str], replies: Replies | None) -> None:
        for engine, reply in zip(engines, replies or (), strict=False):
            self._merge(engine, reply)

    def _merge(self, engine: str, reply: object) -> None:
        if not isinstance(reply, bytes):
            return
        try:
            state = _decode(reply)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            log.warning("engine %s: ignored its breaker in Redis, which cannot be decoded", engine)
            return
        self._set(
            engine, self._get(engine).merge(state.on_clock(self._redis_clock.to_monotonic), self._clock(), self.policy)
        )


_INITIAL: Final = EngineBreaker()
