"""Generations in flight, as router processes share them through Redis.

Theory of operation. A claim is a string beside the entry-to-be: it says which process generates it, under which id,
and how far that process knew the purges when the generation began. It lapses unless it is renewed, so a process that is
killed is missed within seconds. A process that finds the claim of another one publishes on its channel that the flight
is wanted; only then does the leader write what the flight has said, from its first frame on, to a stream
(router.shared.stream_writer), and a first record at once as the acknowledgement. So a flight that nobody else asks for
costs a claim and nothing more. How a follower reads the stream, and when it takes the leader to be lost, is in
router.shared.stream_reader. A follower that has had nothing yet takes over the claim of a lost leader, and leads.

An id is a random prefix of the process' flights and a number. No other process, restart or reload can have it, so no
stream and no claim is ever taken for another generation's.
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
from router.shared.claim import LEASE_DURATION, Claim, encode_claim, process_channel
from router.shared.purges import PurgePosition
from router.shared.scripts import DELETE_IF_SAME, REPLACE_IF_SAME
from router.shared.stream_reader import follow
from router.shared.stream_writer import Producer, RedisStreamWriter, StreamRecord

log = logging.getLogger("roundhouse.flights")

_RENEW_INTERVAL: Final = LEASE_DURATION / 3

_CLAIM: Final = command_template("SET", None, None, "NX", "PX", int(LEASE_DURATION * 1000))
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
_RENEW_BATCH_SIZE: Final = 100  # claims that are renewed in one batch, so that look-ups need not wait behind thousands


_ClaimArgs = tuple[int, bytes, int, bytes]
"""Of a claim that is ours its name and its text, each after its length: what _CLAIM and _RELEASE are filled with."""


class PendingClaim(NamedTuple):
    """A question for a claim, whose answer is to come."""

    flight_id: str
    digest: str
    claim_args: _ClaimArgs
    claim_command: bytes
    lookup_command: Command | EncodedCommand
    replies: "asyncio.Future[Replies]"


class InFlightLeases:
    """The claims and streams of one process.

    - Of all processes that `claim` an entry, one has it, until it releases it, dies, or the entry is purged.
    - Of all processes that `take_over` a claim whose leader is lost, one has it.
    - A flight is written to its stream only if somebody follows it. One that can no longer be written is not claimed.
    """

    def __init__(self, pipeline: RedisPipeline, *, on_remote_subscriber: Callable[[str], None]) -> None:
        """`wanted` is told, every second, which flight of this process another one follows."""
        self.process_id = secrets.token_hex(6)
        self._pipeline = pipeline
        self._on_remote_subscriber = on_remote_subscriber
        self._claims: dict[str, _ClaimArgs] = {}
        self._writers: dict[str, RedisStreamWriter] = {}
        self._stream_events: dict[str, asyncio.Event] = {}  # of the streams that are followed

    @property
    def channel(self) -> str:
        """On which others say what they want of this process."""
        return process_channel(self.process_id)

    # -- leading ----------------------------------------------------------------------------------------------------

    def begin_claim(self, key: str, digest: str, flight_id: str, purge_position: PurgePosition) -> "PendingClaim":
        """Asks for the claim of an entry for a flight, at once; `claim` then says who has it. Raises RedisDownError.

        It is taken for ours until that is known, so it can be released before, where nobody waits for it any more.
        """
        words, look = self._claim_args(key, digest, flight_id, purge_position)
        claim = _CLAIM % words
        asked = PendingClaim(flight_id, digest, words, claim, look, self._pipeline.execute(claim, look))
        self._claims[flight_id] = words
        return asked

    async def finish_claim(
        self, pending: "PendingClaim", replaced_entry_created: float | None = None
    ) -> Claim | Literal["stored"] | None:
        """None: it is ours; else who has it, or that the entry has been stored meanwhile.

        `seen`: when the entry was created that was there before and is to be replaced. Raises RedisDownError.
        """
        taken, created = await pending.replies
        found = None
        if taken is None:  # which is rare; it may be free again by now
            again = self._pipeline.execute(
                pending.claim_command, ("GET", pending.claim_args[1]), pending.lookup_command
            )
            self._claims[pending.flight_id] = (
                pending.claim_args
            )  # it may have been given up, or found not to be ours, meanwhile
            taken, found, created = await again
        if isinstance(taken, Exception):
            raise RedisDownError
        if taken is None:
            self._claims.pop(pending.flight_id, None)
            # What is at the place of a claim and is none, is nobody's; whoever comes then generates for himself.
            return Claim.decode(found) or Claim(self.process_id, pending.flight_id, pending.digest)
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
        """Claims what a process has claimed that is lost, or what nobody claims any more; what it returns, see `claim`.

        Raises RedisDownError.
        """
        (length, at, size, text), look = self._claim_args(key, lost.digest, flight_id, purge_position)
        old = lost.encode().encode()
        self._claims[flight_id] = (length, at, size, text)
        found, created = await self._pipeline.execute(_TAKE_OVER % (length, at, len(old), old, size, text), look)
        if isinstance(found, Exception):
            raise RedisDownError
        if found != 1:
            self._claims.pop(flight_id, None)
            return Claim.decode(found) or Claim(self.process_id, flight_id, lost.digest, purge_position)
        if _is_other_entry(created, replaced_entry_created):
            self.release(flight_id)
            return "stored"
        return None

    def _claim_args(
        self, key: str, digest: str, flight_id: str, purge_position: PurgePosition
    ) -> "tuple[_ClaimArgs, Command | EncodedCommand]":
        """What claims an entry, and the command that looks whether it is there meanwhile."""
        entry, at, text = (
            key.encode(),
            claim_key(key).encode(),
            encode_claim(self.process_id, flight_id, digest, purge_position).encode(),
        )
        return (len(at), at, len(text), text), after_previous(_READ_CREATED % (len(entry), entry))

    def release(self, flight_id: str) -> None:
        """Gives up the claim of a flight, if it has one, or has asked for one."""
        held = self._claims.pop(flight_id, None)
        if held is not None:
            self._send_release(held)

    def _send_release(self, claim_args: "_ClaimArgs") -> None:
        try:
            # Whoever finds it gone must find the entry, and all of the stream.
            self._pipeline.send(after_previous(_RELEASE % claim_args))
        except RedisDownError:
            log.debug("claims lapse by themselves while Redis is away")

    async def run(self) -> None:
        """Renews the claims, and shows that the flights live that are followed, until it is cancelled."""
        while True:
            await asyncio.sleep(_RENEW_INTERVAL)
            for broadcast in list(self._writers.values()):
                broadcast.heartbeat()
            held = list(self._claims.items())
            for at in range(0, len(held), _RENEW_BATCH_SIZE):
                await self._renew(held[at : at + _RENEW_BATCH_SIZE])

    async def _renew(self, claims: "list[tuple[str, _ClaimArgs]]") -> None:
        try:
            replies = await self._pipeline.execute(*[_RENEW % words for _, words in claims])
        except RedisDownError:
            return
        for (flight, _), reply in zip(claims, replies, strict=True):
            if reply == 0:  # it was purged, or lapsed while Redis was away: others may begin the same
                self._claims.pop(flight, None)

    def publish(self, key: str, flight_id: str, producer: Producer, frames: bytes) -> None:
        """What a flight says, to those who follow it: all it has said so far, and then what comes."""
        self._writer(key, flight_id).publish(producer, frames)

    def finish(self, key: str, flight_id: str, producer: Producer, outcome: bytes) -> None:
        """How the flight ended, after all that it has said."""
        broadcast = self._writer(key, flight_id)
        broadcast.publish(producer, b"", outcome)
        if broadcast.failed:
            self._writers.pop(flight_id, None)

    def _writer(self, key: str, flight_id: str) -> RedisStreamWriter:
        broadcast = self._writers.get(flight_id)
        if broadcast is None:
            broadcast = RedisStreamWriter(
                self._pipeline, flight_key(key, flight_id), lambda over: self._on_writer_done(flight_id, over)
            )
            self._writers[flight_id] = broadcast
        return broadcast

    def _on_writer_done(self, flight_id: str, writer: RedisStreamWriter) -> None:
        if writer.failed:
            self.release(flight_id)  # a claim that cannot be followed would keep others from an answer
        if writer.finished:  # else it stays, so that what the flight says next does not begin another stream
            self._writers.pop(flight_id, None)

    def stop(self) -> None:
        """Writes no more to any stream."""
        for broadcast in self._writers.values():
            broadcast.stop()
        self._writers.clear()

    async def follow(self, key: str, claim: Claim) -> AsyncGenerator[StreamRecord, None]:
        """What a flight says, from its first frame to its end; see router.shared.stream_reader. Raises LostError."""
        stream = flight_key(key, claim.flight_id)
        changed = self._stream_events[stream] = asyncio.Event()
        try:
            async with contextlib.aclosing(follow(self._pipeline, key, claim, changed)) as records:
                async for record in records:
                    yield record
        finally:
            if self._stream_events.get(stream) is changed:
                del self._stream_events[stream]

    # -- what is heard ----------------------------------------------------------------------------------------------

    def on_stream_changed(self, stream: str) -> None:
        """A flight's stream has changed."""
        event = self._stream_events.get(stream)
        if event is not None:
            event.set()

    def on_message(self, payload: bytes) -> None:
        """Somebody has said something on this process' channel."""
        self._on_remote_subscriber(payload.decode("ascii", "replace"))


def _is_other_entry(created: object, replaced_entry_created: float | None) -> bool:
    """Whether an entry's field tells of another entry than the one that was seen; what is at its place may be none."""
    try:
        return isinstance(created, bytes) and float(created) != replaced_entry_created
    except ValueError:
        return False
