"""Leases on generations, and their streams: how router processes share in-flight requests through Redis.

Theory of operation. A claim is a string in Redis beside the key of the future entry. It names the process that
generates the entry, the id of its in-flight request, and the purge position that the process knew when the generation
began. A claim expires unless it is renewed, so a killed process is detected within seconds. A process that finds
another process' claim publishes the id on that leader's channel. Only then does the leader begin a stream
(router.shared.inflight.stream_writer): it writes a first record at once, as the acknowledgement, with all frames so
far, and then the frames that follow. So a generation without a remote follower costs one claim and nothing more. How a
follower reads the stream, and when it considers the leader lost, is in router.shared.inflight.stream_reader. A follower
that has received nothing yet takes over the claim of a lost leader, and leads.

The id of an in-flight request is a random prefix per process and Redis, and a number. No other process or restart can
have the same id, so no stream or claim is mistaken for another generation's.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal, NamedTuple

from router.core.cache.redis_keys import claim_key, flight_key
from router.net.redis.commands import Command, EncodedCommand, after_previous, command_template
from router.net.redis.pipeline import RedisDownError, RedisPipeline, Replies
from router.shared.cache.purges import PurgePosition
from router.shared.inflight.claim import LEASE_DURATION, Claim, encode_claim, process_channel
from router.shared.inflight.stream_reader import follow
from router.shared.inflight.stream_writer import Producer, RedisStreamWriter, StreamRecord
from router.shared.scripts import DELETE_IF_SAME, REPLACE_IF_SAME

log = logging.getLogger("roundhouse.flights")

_RENEW_INTERVAL: Final = LEASE_DURATION / 3  # so that a claim survives one renewal that fails

_CLAIM: Final = command_template("SET", None, None, "NX", "PX", int(LEASE_DURATION * 1000))
# A claim is requested together with the entry's creation time: the entry may have been stored since it was looked up.
_READ_CREATED: Final = command_template("HGET", None, "created")
_TAKE_OVER: Final = command_template("EVAL", REPLACE_IF_SAME, 1, None, None, None, int(LEASE_DURATION * 1000))
_RELEASE: Final = command_template("EVAL", DELETE_IF_SAME, 1, None, None)
_RENEW: Final = command_template(
    "EVAL",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
    1,
    None,
    None,
    int(LEASE_DURATION * 1000),
)
_RENEW_BATCH_SIZE: Final = 100  # claims renewed in one batch, so that no lookup waits behind thousands of them


_ClaimArgs = tuple[int, bytes, int, bytes]
"""A claim's key and its value, each after its length: the arguments of _CLAIM and _RELEASE."""


class PendingClaim(NamedTuple):
    """A claim that has been requested, and the replies to come."""

    flight_id: str
    digest: str
    claim_args: _ClaimArgs
    claim_command: bytes
    lookup_command: Command | EncodedCommand
    replies: "asyncio.Future[Replies]"


class InFlightLeases:
    """The claims and streams of one process.

    - Of all processes that claim an entry, one gets it, until it releases the claim, dies, or the entry is purged.
    - Of all processes that `take_over` a claim whose leader is lost, one gets it.
    - An in-flight request is written to its stream only if it has a remote follower. If its stream can no longer be
      written, its claim is released.
    """

    def __init__(self, pipeline: RedisPipeline, *, on_remote_subscriber: Callable[[str], None]) -> None:
        """`on_remote_subscriber` is called with the id of an in-flight request, once a second per remote follower."""
        self.process_id = secrets.token_hex(6)
        self._pipeline = pipeline
        self._on_remote_subscriber = on_remote_subscriber
        self._claims: dict[str, _ClaimArgs] = {}
        self._writers: dict[str, RedisStreamWriter] = {}
        self._stream_events: dict[str, asyncio.Event] = {}  # of the streams that are followed

    @property
    def channel(self) -> str:
        """The channel on which followers publish the ids of in-flight requests of this process."""
        return process_channel(self.process_id)

    @property
    def is_writing(self) -> bool:
        """Whether Redis does not have all records of the streams yet."""
        return bool(self._writers)

    # -- leading ----------------------------------------------------------------------------------------------------

    def begin_claim(self, key: str, digest: str, flight_id: str, purge_position: PurgePosition) -> "PendingClaim":
        """Sends the command that claims an entry; `finish_claim` awaits the outcome. Raises RedisDownError.

        Until the outcome is known, the claim counts as ours, so that `release` works when the caller leaves before.
        """
        claim_args, lookup = self._claim_args(key, digest, flight_id, purge_position)
        claim = _CLAIM % claim_args
        pending = PendingClaim(flight_id, digest, claim_args, claim, lookup, self._pipeline.execute(claim, lookup))
        self._claims[flight_id] = claim_args
        return pending

    async def finish_claim(
        self, pending: "PendingClaim", replaced_entry_created: float | None = None
    ) -> Claim | Literal["stored"] | None:
        """None if this process has the claim; else the claim of another one, or "stored" if the entry exists by now.

        `replaced_entry_created`: the creation time of the entry that the generation is to replace, which does not count
        as "stored". Raises RedisDownError.
        """
        taken, created = await pending.replies
        holder = None
        if taken is None:  # rare: SET NX has failed, and the claim may be free again by the time that GET runs
            retry = self._pipeline.execute(
                pending.claim_command, ("GET", pending.claim_args[1]), pending.lookup_command
            )
            # `release` or `_renew` may have removed it meanwhile; this second claim must be released again, too.
            self._claims[pending.flight_id] = pending.claim_args
            taken, holder, created = await retry
        if isinstance(taken, Exception):
            raise RedisDownError
        if taken is None:
            self._claims.pop(pending.flight_id, None)
            # A value that is not a valid claim has no leader. The caller gets a claim of its own id instead: nobody
            # writes that stream, so the caller considers the leader lost, and in the end generates without a lease.
            return Claim.decode(holder) or Claim(self.process_id, pending.flight_id, pending.digest)
        if _is_other_entry(created, replaced_entry_created):
            self.release(pending.flight_id)
            return "stored"
        return None

    async def take_over(
        self,
        key: str,
        lost: Claim,
        flight_id: str,
        purge_position: PurgePosition,
        replaced_entry_created: float | None = None,
    ) -> Claim | Literal["stored"] | None:
        """Replaces the claim of a lost leader, or claims an entry whose claim has expired.

        Returns the same as `finish_claim`. Raises RedisDownError.
        """
        (name_size, name, size, value), lookup = self._claim_args(key, lost.digest, flight_id, purge_position)
        lost_value = lost.encode().encode()
        # Before the reply: if the caller is cancelled meanwhile, `release` must give up what Redis may have granted.
        self._claims[flight_id] = (name_size, name, size, value)
        reply, created = await self._pipeline.execute(
            _TAKE_OVER % (name_size, name, len(lost_value), lost_value, size, value), lookup
        )
        if isinstance(reply, Exception):
            raise RedisDownError
        if reply != 1:
            self._claims.pop(flight_id, None)
            return Claim.decode(reply) or Claim(self.process_id, flight_id, lost.digest, purge_position)
        if _is_other_entry(created, replaced_entry_created):
            self.release(flight_id)
            return "stored"
        return None

    def _claim_args(
        self, key: str, digest: str, flight_id: str, purge_position: PurgePosition
    ) -> "tuple[_ClaimArgs, Command | EncodedCommand]":
        """The arguments of the claim, and the command that checks whether the entry exists by now."""
        entry, claim_name, value = (
            key.encode(),
            claim_key(key).encode(),
            encode_claim(self.process_id, flight_id, digest, purge_position).encode(),
        )
        return (len(claim_name), claim_name, len(value), value), after_previous(_READ_CREATED % (len(entry), entry))

    def release(self, flight_id: str) -> None:
        """Releases the claim of an in-flight request, if it has or has requested one."""
        claim_args = self._claims.pop(flight_id, None)
        if claim_args is not None:
            self._send_release(claim_args)

    def _send_release(self, claim_args: "_ClaimArgs") -> None:
        try:
            # After everything before it: a process that finds no claim must find the entry and the complete stream.
            self._pipeline.send(after_previous(_RELEASE % claim_args))
        except RedisDownError:
            log.debug("Redis is down: leases will expire")

    async def run(self) -> None:
        """Renews the claims and writes the heartbeats of the streams, until it is cancelled."""
        while True:
            await asyncio.sleep(_RENEW_INTERVAL)
            for writer in list(self._writers.values()):
                writer.heartbeat()
            claims = list(self._claims.items())
            for start in range(0, len(claims), _RENEW_BATCH_SIZE):
                await self._renew(claims[start : start + _RENEW_BATCH_SIZE])

    async def _renew(self, claims: "list[tuple[str, _ClaimArgs]]") -> None:
        try:
            replies = await self._pipeline.execute(*[_RENEW % claim_args for _, claim_args in claims])
        except RedisDownError:
            return
        for (flight_id, _), reply in zip(claims, replies, strict=True):
            # 0: the claim was purged, or expired while Redis was down, and another process may have the key. Any other
            # reply, such as an error, leaves the claim: the renewal is tried again.
            if reply == 0:
                self._claims.pop(flight_id, None)

    def publish(self, key: str, flight_id: str, producer: Producer, frames: bytes) -> None:
        """Appends frames to the stream. The first call must have all frames of the in-flight request so far."""
        self._writer(key, flight_id).publish(producer, frames)

    def finish(self, key: str, flight_id: str, producer: Producer, outcome: bytes) -> None:
        """Appends the encoded outcome, the last record of the stream."""
        writer = self._writer(key, flight_id)
        writer.publish(producer, b"", outcome)
        if writer.failed:
            self._writers.pop(flight_id, None)

    def _writer(self, key: str, flight_id: str) -> RedisStreamWriter:
        writer = self._writers.get(flight_id)
        if writer is None:
            writer = RedisStreamWriter(
                self._pipeline, flight_key(key, flight_id), lambda done: self._on_writer_done(flight_id, done)
            )
            self._writers[flight_id] = writer
        return writer

    def _on_writer_done(self, flight_id: str, writer: RedisStreamWriter) -> None:
        if writer.failed:
            self.release(flight_id)  # other processes would wait for a stream that nobody writes
        if writer.finished:  # not finished: the failed writer stays, so that the next frames start no second stream
            self._writers.pop(flight_id, None)

    def stop(self) -> None:
        for writer in self._writers.values():
            writer.stop()
        self._writers.clear()

    async def follow(self, key: str, claim: Claim) -> AsyncGenerator[StreamRecord, None]:
        """The records of another process' in-flight request, up to its outcome; see stream_reader.

        Raises LeaderLostError.
        """
        stream = flight_key(key, claim.flight_id)
        stream_changed = self._stream_events[stream] = asyncio.Event()
        try:
            async with contextlib.aclosing(follow(self._pipeline, key, claim, stream_changed)) as records:
                async for record in records:
                    yield record
        finally:
            if self._stream_events.get(stream) is stream_changed:  # not if another `follow` has replaced it
                del self._stream_events[stream]

    # -- Redis' pushes ----------------------------------------------------------------------------------------------

    def on_stream_changed(self, stream: str) -> None:
        event = self._stream_events.get(stream)
        if event is not None:
            event.set()

    def on_message(self, payload: bytes) -> None:
        """A message has arrived on this process' channel: the id of an in-flight request."""
        self._on_remote_subscriber(payload.decode("ascii", "replace"))


def _is_other_entry(created: object, replaced_entry_created: float | None) -> bool:
    """Whether `created`, an entry's field, shows another entry than the one to be replaced. It may be of any type."""
    try:
        return isinstance(created, bytes) and float(created) != replaced_entry_created
    except ValueError:
        return False
