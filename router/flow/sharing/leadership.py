"""Which process generates the response for a key, and what the others receive of it.

Theory of operation. An in-flight request claims its key in Redis. The process that gets the claim is the leader: it
generates, and as soon as another process asks, it writes the frames to a stream in Redis. Every other process follows
that stream. If the leader is lost before a subscriber here has received anything, a follower takes over its claim.
While Redis is down, each process generates for itself.
"""

import logging
from typing import Final, Literal

import msgspec

from router.core.cache.cache_key import CacheKey
from router.flow.exchange import GenerationRecord
from router.flow.result import GenerationResult, lost_result
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.outcome_codec import decode_result, encode_result
from router.net.redis.pipeline import RedisDownError
from router.shared.cache.purges import Purges
from router.shared.inflight.claim import Claim
from router.shared.inflight.claims import PendingClaim
from router.shared.inflight.inflight_leases import InFlightLeases
from router.shared.inflight.stream_reader import LeaderLostError
from router.shared.inflight.stream_writer import Producer

log = logging.getLogger("roundhouse.flights")

# Each takeover replaces a leader that was lost within seconds of its claim. After the last one, this process generates
# without a lease instead of waiting for yet another leader.
_MAX_TAKEOVERS: Final = 3


class Leadership:
    """Claims keys for in-flight requests, follows other leaders, and serves the followers of this one.

    - For each key, all processes together have one leader, as long as Redis answers.
    - A lost leader's generation is taken over if no subscriber here has received any of it.
    - What another process generates is not followed if a purge that this process knows covers it.
    """

    def __init__(self, leases: InFlightLeases, purges: Purges) -> None:
        self._leases = leases
        self._purges = purges

    def request_claim(self, inflight: InFlightRequest) -> PendingClaim | None:
        """Sends the claim now, in the batch of this event loop iteration. None: no lease is used."""
        key = inflight.key
        if key is None:  # its response is not shared
            return None
        try:
            return self._leases.claims.begin(key.text, key.digest, inflight.id, inflight.purge_position)
        except RedisDownError:
            return None

    async def wait_for_other_leader(
        self, inflight: InFlightRequest, pending_claim: PendingClaim, replaced_entry_created: float | None
    ) -> GenerationResult | None:
        """What another process generated. None: this process has to, with the lease or, without Redis, without one.

        `replaced_entry_created`: see NewGeneration.
        """
        key = inflight.key
        assert key is not None  # it has a claim
        try:
            claim = _without_collision(await self._leases.claims.finish(pending_claim, replaced_entry_created), key)
        except RedisDownError:
            return None
        for _ in range(_MAX_TAKEOVERS):
            if not isinstance(claim, Claim):
                break
            result = await self._follow(inflight, key, claim)
            if result is not None:
                return result
            claim = await self._take_over(inflight, key, claim, replaced_entry_created)
        # Stored meanwhile: a result without an error makes subscribers retry, and find the entry.
        return GenerationResult(complete=False) if claim == "stored" else None

    async def _follow(self, inflight: InFlightRequest, key: CacheKey, claim: Claim) -> GenerationResult | None:
        """Receives what another process generates.

        None if that is lost or purged and no subscriber here has received any of it, so that another leader can start.
        """
        # The claim says which purges its leader knew at the start; this process may know a later one.
        if not self._purges.up_to_date:  # purges may have been missed, so read the log first
            await self._purges.try_catch_up()
        if self._purges.covers(key.text, inflight.documents, claim.purge_position):
            return None
        inflight.is_leader = False
        try:
            outcome: bytes | None = None
            # To its end, which is after the outcome: `aclosing` would await while an exception is being handled.
            async for received in self._leases.follow(key.text, claim):
                if received.producer.engine is not None:
                    inflight.is_at_engine = True
                    inflight.record.leader = received.producer
                if received.frames:
                    inflight.publish(received.frames)
                outcome = received.outcome
            if outcome is not None:
                return decode_result(outcome)
        except (LeaderLostError, RedisDownError, msgspec.DecodeError) as error:
            log.debug("lost the leader of an in-flight request: %r", error)
        # A stream that has begun cannot continue with another generation's text.
        return lost_result() if inflight.has_data else None

    async def _take_over(
        self, inflight: InFlightRequest, key: CacheKey, claim: Claim, replaced_entry_created: float | None
    ) -> Claim | Literal["stored"] | None:
        """Takes over another process' claim. None if this process now leads; else as Claims.finish."""
        inflight.is_at_engine, inflight.record.leader = False, None  # they were of the lost leader
        try:
            new_claim = await self._leases.take_over(
                key.text, claim, inflight.id, inflight.purge_position, replaced_entry_created
            )
        except RedisDownError:
            return None
        return _without_collision(new_claim, key)

    # -- the leader's side --------------------------------------------------------------------------------------------

    def publish_to_followers(self, inflight: InFlightRequest) -> None:
        """From now on, frames also go to the stream in Redis, beginning with those so far."""
        assert inflight.key is not None  # without one it has no claim, and no follower can find it
        leases, key, id_, record = self._leases, inflight.key.text, inflight.id, inflight.record
        traceparent = inflight.trace.traceparent()  # once, not for each chunk
        inflight.on_publish = lambda frames: leases.publish(key, id_, _producer(record, traceparent), frames)
        # Even if that is empty: the first record tells the follower that the leader is alive.
        inflight.on_publish(inflight.buffered_data())

    def publish_result(self, inflight: InFlightRequest, result: GenerationResult) -> None:
        """Ends the stream in Redis, if there is one."""
        if inflight.on_publish is not None:
            assert inflight.key is not None
            outcome = encode_result(result, engine=inflight.record.engine)
            producer = _producer(inflight.record, inflight.trace.traceparent())
            self._leases.finish(inflight.key.text, inflight.id, producer, outcome)

    def release(self, inflight: InFlightRequest) -> None:
        """Gives up the claim, if there is one: no other process starts to follow, and another one may lead."""
        self._leases.claims.release(inflight.id)


def _producer(record: GenerationRecord, traceparent: str | None) -> Producer:
    return Producer(record.engine, record.fallback_model, traceparent)


def _without_collision(claim: Claim | Literal["stored"] | None, key: CacheKey) -> Claim | Literal["stored"] | None:
    """The claim, or None if it belongs to another request whose key has the same hashes: do not follow that one."""
    return None if isinstance(claim, Claim) and claim.digest != key.digest else claim
