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

from router.core.cache.redis_keys import claim_of, flight_of
from router.net.redis.commands import Command, Packed, form, later
from router.net.redis.pipeline import Line, RedisDownError, Replies
from router.shared.claim import LEASE, Claim, channel_of, claim_text
from router.shared.purges import Mark
from router.shared.scripts import DELETE_IF_SAME, REPLACE_IF_SAME
from router.shared.stream_reader import follow
from router.shared.stream_writer import Broadcast, Record, Source

log = logging.getLogger("roundhouse.flights")

_RENEW_EVERY: Final = LEASE / 3

_CLAIM: Final = form("SET", None, None, "NX", "PX", int(LEASE * 1000))
_CREATED: Final = form("HGET", None, "created")
_TAKE_OVER: Final = form("EVAL", REPLACE_IF_SAME, 1, None, None, None, int(LEASE * 1000))
_RELEASE: Final = form("EVAL", DELETE_IF_SAME, 1, None, None)
_RENEW: Final = form(
    "EVAL",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
    1,
    None,
    None,
    int(LEASE * 1000),
)
_AT_ONCE: Final = 100  # claims that are renewed in one batch, so that look-ups need not wait behind thousands


_Held = tuple[int, bytes, int, bytes]
"""Of a claim that is ours its name and its text, each after its length: what _CLAIM and _RELEASE are filled with."""


class Asked(NamedTuple):
    """A question for a claim, whose answer is to come."""

    flight: str
    digest: str
    words: _Held
    claim: bytes
    look: Command | Packed
    replies: "asyncio.Future[Replies]"


class SharedFlights:
    """The claims and streams of one process.

    - Of all processes that `claim` an entry, one has it, until it releases it, dies, or the entry is purged.
    - Of all processes that `take_over` a claim whose leader is lost, one has it.
    - A flight is written to its stream only if somebody follows it. One that can no longer be written is not claimed.
    """

    def __init__(self, line: Line, *, wanted: Callable[[str], None]) -> None:
        """`wanted` is told, every second, which flight of this process another one follows."""
        self.process = secrets.token_hex(6)
        self._line = line
        self._wanted = wanted
        self._held: dict[str, _Held] = {}
        self._broadcasts: dict[str, Broadcast] = {}
        self._changed: dict[str, asyncio.Event] = {}  # of the streams that are followed

    @property
    def channel(self) -> str:
        """On which others say what they want of this process."""
        return channel_of(self.process)

    # -- leading ----------------------------------------------------------------------------------------------------

    def ask(self, key: str, digest: str, flight: str, since: Mark) -> "Asked":
        """Asks for the claim of an entry for a flight, at once; `claim` then says who has it. Raises RedisDownError.

        It is taken for ours until that is known, so it can be released before, where nobody waits for it any more.
        """
        words, look = self._words(key, digest, flight, since)
        claim = _CLAIM % words
        asked = Asked(flight, digest, words, claim, look, self._line.ask(claim, look))
        self._held[flight] = words
        return asked

    async def claim(self, asked: "Asked", seen: float | None = None) -> Claim | Literal["stored"] | None:
        """None: it is ours; else who has it, or that the entry has been stored meanwhile.

        `seen`: when the entry was created that was there before and is to be replaced. Raises RedisDownError.
        """
        taken, created = await asked.replies
        found = None
        if taken is None:  # which is rare; it may be free again by now
            again = self._line.ask(asked.claim, ("GET", asked.words[1]), asked.look)
            self._held[asked.flight] = asked.words  # it may have been given up, or found not to be ours, meanwhile
            taken, found, created = await again
        if isinstance(taken, Exception):
            raise RedisDownError
        if taken is None:
            self._held.pop(asked.flight, None)
            # What is at the place of a claim and is none, is nobody's; whoever comes then generates for himself.
            return Claim.read(found) or Claim(self.process, asked.flight, asked.digest)
        if _is_another(created, seen):
            self.release(asked.flight)
            return "stored"
        return None

    async def take_over(
        self, key: str, lost: Claim, flight: str, since: Mark, seen: float | None = None
    ) -> Claim | Literal["stored"] | None:
        """Claims what a process has claimed that is lost, or what nobody claims any more; what it returns, see `claim`.

        Raises RedisDownError.
        """
        (length, at, size, text), look = self._words(key, lost.digest, flight, since)
        old = lost.text().encode()
        self._held[flight] = (length, at, size, text)
        found, created = await self._line.ask(_TAKE_OVER % (length, at, len(old), old, size, text), look)
        if isinstance(found, Exception):
            raise RedisDownError
        if found != 1:
            self._held.pop(flight, None)
            return Claim.read(found) or Claim(self.process, flight, lost.digest, since)
        if _is_another(created, seen):
            self.release(flight)
            return "stored"
        return None

    def _words(self, key: str, digest: str, flight: str, since: Mark) -> "tuple[_Held, Command | Packed]":
        """What claims an entry, and the command that looks whether it is there meanwhile."""
        entry, at, text = (
            key.encode(),
            claim_of(key).encode(),
            claim_text(self.process, flight, digest, since).encode(),
        )
        return (len(at), at, len(text), text), later(_CREATED % (len(entry), entry))

    def release(self, flight: str) -> None:
        """Gives up the claim of a flight, if it has one, or has asked for one."""
        held = self._held.pop(flight, None)
        if held is not None:
            self._release(held)

    def _release(self, held: "_Held") -> None:
        try:
            # Whoever finds it gone must find the entry, and all of the stream.
            self._line.tell(later(_RELEASE % held))
        except RedisDownError:
            log.debug("claims lapse by themselves while Redis is away")

    async def run(self) -> None:
        """Renews the claims, and shows that the flights live that are followed, until it is cancelled."""
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            for broadcast in list(self._broadcasts.values()):
                broadcast.beat()
            held = list(self._held.items())
            for at in range(0, len(held), _AT_ONCE):
                await self._renew(held[at : at + _AT_ONCE])

    async def _renew(self, held: "list[tuple[str, _Held]]") -> None:
        try:
            replies = await self._line.ask(*[_RENEW % words for _, words in held])
        except RedisDownError:
            return
        for (flight, _), reply in zip(held, replies, strict=True):
            if reply == 0:  # it was purged, or lapsed while Redis was away: others may begin the same
                self._held.pop(flight, None)

    def say(self, key: str, flight: str, source: Source, frames: bytes) -> None:
        """What a flight says, to those who follow it: all it has said so far, and then what comes."""
        self._broadcast(key, flight).say(source, frames)

    def end(self, key: str, flight: str, source: Source, end: bytes) -> None:
        """How the flight ended, after all that it has said."""
        broadcast = self._broadcast(key, flight)
        broadcast.say(source, b"", end)
        if broadcast.failed:
            self._broadcasts.pop(flight, None)

    def _broadcast(self, key: str, flight: str) -> Broadcast:
        broadcast = self._broadcasts.get(flight)
        if broadcast is None:
            broadcast = Broadcast(self._line, flight_of(key, flight), lambda over: self._over(flight, over))
            self._broadcasts[flight] = broadcast
        return broadcast

    def _over(self, flight: str, broadcast: Broadcast) -> None:
        if broadcast.failed:
            self.release(flight)  # a claim that cannot be followed would keep others from an answer
        if broadcast.ended:  # else it stays, so that what the flight says next does not begin another stream
            self._broadcasts.pop(flight, None)

    def stop(self) -> None:
        """Writes no more to any stream."""
        for broadcast in self._broadcasts.values():
            broadcast.stop()
        self._broadcasts.clear()

    async def follow(self, key: str, claim: Claim) -> AsyncGenerator[Record, None]:
        """What a flight says, from its first frame to its end; see router.shared.stream_reader. Raises LostError."""
        stream = flight_of(key, claim.flight)
        changed = self._changed[stream] = asyncio.Event()
        try:
            async with contextlib.aclosing(follow(self._line, key, claim, changed)) as records:
                async for record in records:
                    yield record
        finally:
            if self._changed.get(stream) is changed:
                del self._changed[stream]

    # -- what is heard ----------------------------------------------------------------------------------------------

    def changed(self, stream: str) -> None:
        """A flight's stream has changed."""
        event = self._changed.get(stream)
        if event is not None:
            event.set()

    def message(self, payload: bytes) -> None:
        """Somebody has said something on this process' channel."""
        self._wanted(payload.decode("ascii", "replace"))


def _is_another(created: object, seen: float | None) -> bool:
    """Whether an entry's field tells of another entry than the one that was seen; what is at its place may be none."""
    try:
        return isinstance(created, bytes) and float(created) != seen
    except ValueError:
        return False
