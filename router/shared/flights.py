"""Generations in flight, as router processes share them through Redis.

Theory of operation. A claim is a string beside the entry-to-be: it says which process generates it, under which id. It
lapses unless it is renewed, so a process that is killed is missed within seconds. Whoever finds a claim of another
process tells it, on its channel, that the flight is wanted; only then does that process write what the flight has said,
from its first frame on, to a stream, and goes on with what comes, gathered over some tens of milliseconds. So a flight
that nobody else asks for costs a claim and nothing more. Whoever follows is told by Redis when the stream has changed
(router.shared.listener), reads on from where he was, and says again every second that he is there.

Where the process of a flight ends before the flight does, its followers see the claim lapse: the flight is lost.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal, NamedTuple

import msgspec

from router.core.names import claim_of, flight_of
from router.shared.broadcast import Broadcast, Record, Source, read_record
from router.shared.line import Line, RedisDownError, Replies
from router.shared.link import Command, Packed, form, later
from router.shared.scripts import DELETE_IF_SAME

log = logging.getLogger("roundhouse.flights")

LEASE: Final = 2.0
"""Seconds for which a claim stands without being renewed."""

WANTED: Final = 1.0
"""Seconds between two words of a follower that he is still there."""

_RENEW_EVERY: Final = LEASE / 3
_LOOK_AGAIN: Final = 0.5  # seconds; in case that a change was not told

_CLAIM: Final = form("SET", None, None, "NX", "PX", int(LEASE * 1000))
_CREATED: Final = form("HGET", None, "created")
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


class Claim(msgspec.Struct, frozen=True):
    """A process' word that it generates an entry: `flight` is the generation's id, `digest` the request's."""

    process: str
    flight: str
    digest: str

    def text(self) -> str:
        return f"{self.process}:{self.flight}:{self.digest}"

    @classmethod
    def read(cls, text: object) -> "Claim | None":
        words = text.decode("ascii", "replace").split(":") if isinstance(text, bytes) else []
        return cls(*words) if len(words) == 3 else None


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


class LostError(Exception):
    """Whoever generated is gone, or has nothing more to say of it."""


class SharedFlights:
    """The claims and streams of one process.

    - Of all processes that `claim` an entry, one has it, until it releases it, dies, or the entry is purged.
    - Whoever `follow`s a claim has what the flight says from its first frame on, in order and without a gap, to its
      end, or LostError within seconds.
    - A flight is written to its stream only if somebody follows it.
    """

    def __init__(self, line: Line, *, wanted: Callable[[str], None]) -> None:
        """`wanted` is told, every second, which flight of this process another one follows."""
        self.process = secrets.token_hex(6)
        self._line = line
        self._wanted = wanted
        self._held: dict[str, _Held] = {}
        self._broadcasts: dict[str, Broadcast] = {}
        self._followed: dict[str, asyncio.Event] = {}

    @property
    def channel(self) -> str:
        """On which others say what they want of this process."""
        return channel_of(self.process)

    # -- leading ----------------------------------------------------------------------------------------------------

    def ask(self, key: str, digest: str, flight: str) -> "Asked":
        """Asks for the claim of an entry for a flight, at once; `claim` then says who has it. Raises RedisDownError.

        It is taken for ours until that is known, so it can be released before, where nobody waits for it any more.
        """
        entry, at, text = key.encode(), claim_of(key).encode(), f"{self.process}:{flight}:{digest}".encode()
        words = (len(at), at, len(text), text)
        claim, look = _CLAIM % words, later(_CREATED % (len(entry), entry))
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
        """Renews the claims, until it is cancelled."""
        while True:
            await asyncio.sleep(_RENEW_EVERY)
            held = list(self._held.items())
            for at in range(0, len(held), _AT_ONCE):
                await self._renew(held[at : at + _AT_ONCE])

    async def _renew(self, held: "list[tuple[str, _Held]]") -> None:
        try:
            replies = await self._line.ask(*[_RENEW % words for _, words in held])
        except RedisDownError:
            return
        for (flight, _), reply in zip(held, replies, strict=True):
            if reply != 1:  # it was purged, or lapsed while Redis was away: others may begin the same
                self._held.pop(flight, None)

    def say(self, key: str, flight: str, source: Source, frames: bytes) -> None:
        """What a flight says, to those who follow it: all it has said so far, and then what comes."""
        broadcast = self._broadcasts.get(flight)
        if broadcast is None:
            broadcast = self._broadcasts[flight] = Broadcast(self._line, flight_of(key, flight))
        broadcast.say(source, frames)

    def end(self, key: str, flight: str, source: Source, end: bytes) -> None:
        """How the flight ended, after all that it has said."""
        broadcast = self._broadcasts.pop(flight, None) or Broadcast(self._line, flight_of(key, flight))
        broadcast.say(source, b"", end)

    # -- following --------------------------------------------------------------------------------------------------

    async def follow(self, key: str, claim: Claim) -> AsyncGenerator[Record, None]:
        """What a flight says, from its first frame to its end. Raises LostError, RedisDownError."""
        stream = flight_of(key, claim.flight)
        changed = self._followed[stream] = asyncio.Event()
        loop = asyncio.get_running_loop()
        last, heard, said = 0, loop.time(), 0.0
        try:
            while True:
                if loop.time() - said >= WANTED:
                    self._line.tell(("PUBLISH", channel_of(claim.process), claim.flight))
                    said = loop.time()
                changed.clear()
                # The claim first: if it is gone by then, the stream has all that it ever will.
                found, records = await self._line.ask(
                    ("GET", claim_of(key)), later(("XRANGE", stream, f"{last + 1}-0", "+", "COUNT", 100))
                )
                if isinstance(records, Exception):
                    raise LostError
                for id_, fields in records:
                    number = int(id_.partition(b"-")[0])
                    if number != last + 1:
                        raise LostError  # it has said more than a stream keeps
                    last, heard = number, loop.time()
                    record = read_record(fields)
                    yield record
                    if record.end is not None:
                        return
                gone = found != claim.text().encode()
                if gone and not records and (last == 0 or loop.time() - heard > LEASE):
                    raise LostError
                if not records:
                    await _event(changed, _LOOK_AGAIN)
        finally:
            if self._followed.get(stream) is changed:
                del self._followed[stream]

    # -- what is heard ----------------------------------------------------------------------------------------------

    def changed(self, stream: str) -> None:
        """A flight's stream has changed."""
        event = self._followed.get(stream)
        if event is not None:
            event.set()

    def message(self, payload: bytes) -> None:
        """Somebody has said something on this process' channel."""
        self._wanted(payload.decode("ascii", "replace"))


def channel_of(process: str) -> str:
    """On which channel a process is told that one of its flights is wanted."""
    return f"rh:1:process:{process}"


def _is_another(created: object, seen: float | None) -> bool:
    """Whether an entry's field tells of another entry than the one that was seen; what is at its place may be none."""
    try:
        return isinstance(created, bytes) and float(created) != seen
    except ValueError:
        return False


async def _event(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
