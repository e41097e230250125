"""Sends the other router processes which prompts this one sends to which engine, and learns of theirs.

Messages on a channel of Redis, PROMPTS_CHANNEL: the version of the chains, the id of the process, and a list of records
(msgpack). Three for each prompt: it was sent, its first token has come, it was answered. A record names the hashes of a
prompt's pieces and no text.

Theory of operation. Each process applies the records of the others to its own Prefills, so all estimate alike. Records
are sent together after FLUSH_DELAY, and are not awaited. One that is lost, late or doubled makes an estimate worse, and
nothing else: a prompt whose end is lost is forgotten when its process says that all prompts up to it have ended, after
MAX_AGE, or with its process. A message that cannot be read, or of another version, is ignored.

A process says every HELLO_INTERVAL that it is there. While it hears of no other, it sends nothing else. While others
are there and cannot be heard, prompts stay closer to their homes (see `away_tokens`), which are the same in all. When a
process first hears of others, it asks one of them for a snapshot of its indexes (prompt_snapshot.py).
"""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from router.core.routing.prefill import EnginePrefill, Prefills, SentPrompt
from router.core.routing.prefix_cache.prompt_chain import NO_PROMPT, PIECE, PromptChain
from router.shared.prompts.prompt_snapshot import (
    SnapshotPiece,
    SnapshotReceiver,
    SnapshotRequest,
    SnapshotSender,
    entry_count,
)

PROMPTS_CHANNEL: Final = "rh:1:process:prompts"

CHAIN_VERSION: Final = 1
"""To be increased when equal prompts get other chains than before."""

FLUSH_DELAY: Final = 0.002
"""Seconds for which records are collected."""

HELLO_INTERVAL: Final = 2.0
ASK_DELAY: Final = 0.1
"""Seconds from the first message of another process to the request for a snapshot: until all have said how much they
have."""

PRESENCE: Final = 10.0
"""Seconds since the last message of a process, after which it counts as gone."""

MEMORY: Final = 600.0
"""Seconds for which a process that cannot be heard is believed to be there nevertheless."""

MAX_AGE: Final = 300.0
"""Seconds after which a prompt of another process counts as ended."""

UNHEARD_AWAY_TOKENS: Final = 1000.0
"""As AWAY_TOKENS, while others choose engines without this process hearing of it."""

MAX_PIECES: Final = 4096
"""Of a prompt, the first ones that a record names: those of 4 MiB of text."""

MAX_REMOTE_PIECES: Final = 1 << 19
"""Of all prompts of other processes that are remembered."""

_MAX_REMOTE: Final = 20_000  # prompts of other processes that are remembered
_MAX_PROCESSES: Final = 1000
_MAX_TOKENS: Final = 1 << 24  # of an answer


class _Chain(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Hashes and sizes of pieces, packed: 8 and 2 bytes each, in the order of the machine."""

    hashes: bytes = b""
    sizes: bytes = b""


class _Sent(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    number: int
    url: str
    chain: _Chain


class _Computed(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    number: int


class _Ended(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """`more`: the pieces that the answer adds to the first `kept` ones of the prompt."""

    number: int
    completion_tokens: int = 0
    kept: int = 0
    more: _Chain = _Chain()


class _Hello(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`held`: how many entries its indexes have. `open_from`: no prompt with a smaller number is at an engine."""

    held: int = 0
    open_from: int = 0


_Record = _Sent | _Computed | _Ended | SnapshotRequest | SnapshotPiece


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`hello`: what the process says every HELLO_INTERVAL; a message with records has none."""

    version: int
    process: str
    records: list[_Record]
    hello: _Hello | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Message).decode


class RecordLink(Protocol):
    """Where messages go."""

    @property
    def up(self) -> bool:
        """Whether the other processes get messages, and this one theirs, as far as is known."""

    def publish(self, message: bytes) -> None: ...


class NoLink:
    """To nobody."""

    up: Final = False

    def publish(self, message: bytes) -> None:
        pass


class _Peer(msgspec.Struct):
    """Another process. `heard_at`: when its last message came. `hello`: the last one."""

    heard_at: float
    hello: _Hello = _Hello()


class _RemotePrompt(msgspec.Struct):
    engine: EnginePrefill
    sent: SentPrompt


class PromptRecords:
    """The records of one process.

    - `link`: replaced when the configuration changes.
    """

    def __init__(
        self, prefills: Prefills, process: str, *, has_workers: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        """`has_workers`: whether there are other processes of this router. `clock`: as in GenerationRecord."""
        self.link: RecordLink = NoLink()
        self._prefills = prefills
        self._process = process
        self._has_workers = has_workers
        self._clock = clock
        self._number = 0
        self._open: dict[int, None] = {}  # the numbers of prompts that have not ended, the oldest first
        self._batch: list[_Record] = []
        self._peers: dict[str, _Peer] = {}  # by process
        self._remote: dict[tuple[str, int], _RemotePrompt] = {}  # the oldest first
        self._remote_pieces = 0  # of their chains
        self._snapshots = SnapshotSender(prefills, lambda piece: self._publish([piece]))
        self._snapshot = SnapshotReceiver(prefills, lambda process: self._publish([SnapshotRequest(process)]))

    # -- of this process ----------------------------------------------------------------------------------------------

    def on_sent(self, url: str, chain: PromptChain) -> int:
        """Returns a number, which the later records of the prompt have."""
        self._number += 1
        self._open[self._number] = None
        if self._reaches_others:
            self._add(_Sent(self._number, url, _pack(chain, 0)))
        return self._number

    def on_computed(self, number: int) -> None:
        if self._reaches_others:
            self._add(_Computed(number))

    def on_answered(self, number: int, prompt: PromptChain, answered: PromptChain, completion_tokens: int) -> None:
        self._open.pop(number, None)
        if self._reaches_others:
            kept = _common(prompt, answered)
            self._add(_Ended(number, completion_tokens, kept, _pack(answered, kept)))

    def on_ended(self, number: int) -> None:
        self._open.pop(number, None)
        if self._reaches_others:
            self._add(_Ended(number))

    @property
    def _reaches_others(self) -> bool:
        return bool(self._peers) and self.link.up

    def _add(self, record: _Record) -> None:
        if not self._batch:
            asyncio.get_running_loop().call_later(FLUSH_DELAY, self._flush)
        self._batch.append(record)

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._publish(batch)

    def _publish(self, records: list[_Record], hello: _Hello | None = None) -> None:
        if self.link.up:
            self.link.publish(_encode(_Message(CHAIN_VERSION, self._process, records, hello)))

    def _publish_hello(self) -> None:
        self._flush()  # ends of prompts before it says that they have ended
        self._publish([], _Hello(entry_count(self._prefills), next(iter(self._open), self._number + 1)))

    # -- of other processes -------------------------------------------------------------------------------------------

    def say_hello(self) -> None:
        """To be called every HELLO_INTERVAL."""
        now = self._clock()
        gone = PRESENCE if self.link.up else MEMORY
        self._peers = {process: peer for process, peer in self._peers.items() if now - peer.heard_at < gone}
        self._drop_old(now)
        self._publish_hello()
        self._ask_for_snapshot()

    def on_message(self, payload: bytes) -> None:
        try:
            message = _decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if message.version != CHAIN_VERSION or message.process == self._process:
            return
        now = self._clock()
        peer = self._peers.get(message.process)
        if peer is None:
            if len(self._peers) >= _MAX_PROCESSES:
                return
            if not self._peers:
                asyncio.get_running_loop().call_later(ASK_DELAY, self._ask_for_snapshot)
            peer = self._peers[message.process] = _Peer(now)
            self._publish_hello()  # so that it need not wait for the next one
        peer.heard_at = now
        if message.hello is not None:
            peer.hello = message.hello
        for record in message.records:
            self._apply(message.process, record, now)

    def _apply(self, process: str, record: _Record, now: float) -> None:
        if isinstance(record, SnapshotRequest):
            if record.process == self._process:
                self._snapshots.start()
        elif isinstance(record, SnapshotPiece):
            self._snapshot.on_piece(process, record, now)
        else:
            self._apply_to_prompt(process, record, now)

    def _ask_for_snapshot(self) -> None:
        if self._reaches_others:
            self._snapshot.on_others({process: peer.hello.held for process, peer in self._peers.items()}, self._clock())

    def _apply_to_prompt(self, process: str, record: _Sent | _Computed | _Ended, now: float) -> None:
        key = process, record.number
        if isinstance(record, _Sent):
            prompt_chain = _unpack(record.chain, NO_PROMPT)
            engine = self._prefills.known(record.url)
            if engine is None or prompt_chain is None or key in self._remote:
                return
            count = len(prompt_chain.hashes)
            while self._remote and (
                len(self._remote) >= _MAX_REMOTE or self._remote_pieces + count > MAX_REMOTE_PIECES
            ):
                self._drop(next(iter(self._remote)), now)
            sent = engine.on_sent(prompt_chain, self._prefills.seconds_per_token(record.url, now), now)
            engine.remote += 1
            self._remote_pieces += count
            self._remote[key] = _RemotePrompt(engine, sent)
        elif isinstance(record, _Computed):
            if (prompt := self._remote.get(key)) is not None:
                prompt.engine.on_ended(prompt.sent, now)
        elif (prompt := self._drop(key, now)) is not None:
            chain = prompt.sent.chain
            answered = _unpack(record.more, PromptChain(chain.hashes[: record.kept], chain.ends[: record.kept]))
            if answered is not None and record.kept >= 0:
                prompt.engine.add_answer(answered, min(max(0, record.completion_tokens), _MAX_TOKENS), now)

    def _drop(self, key: tuple[str, int], now: float) -> _RemotePrompt | None:
        prompt = self._remote.pop(key, None)
        if prompt is not None:
            prompt.engine.on_ended(prompt.sent, now)
            prompt.engine.remote -= 1
            self._remote_pieces -= len(prompt.sent.chain.hashes)
        return prompt

    def _drop_old(self, now: float) -> None:
        for key, prompt in list(self._remote.items()):
            process, number = key
            peer = self._peers.get(process)
            # The process has died, or the end was lost.
            if peer is None or number < peer.hello.open_from or now - prompt.sent.sent_at > MAX_AGE:
                self._drop(key, now)

    # -- what the estimates need --------------------------------------------------------------------------------------

    def away_tokens(self, if_heard: float) -> float:
        """What an engine other than the home costs more: `if_heard`, unless others cannot be heard."""
        is_alone = not self._peers and not self._has_workers
        return if_heard if is_alone or self._reaches_others else max(if_heard, UNHEARD_AWAY_TOKENS)


def _pack(chain: PromptChain, start: int) -> _Chain:
    """The pieces from `start` on."""
    ends = chain.ends[:MAX_PIECES]
    before = [0, *ends]
    sizes = array("H", (end - before[number] for number, end in enumerate(ends[start:], start)))
    return _Chain(array("Q", chain.hashes[start:MAX_PIECES]).tobytes(), sizes.tobytes())


def _unpack(packed: _Chain, begin: PromptChain) -> PromptChain | None:
    """The chain that begins with `begin`; None for a packed one that no process sends."""
    count = len(packed.hashes) // 8
    if len(packed.hashes) != 8 * count or len(packed.sizes) != 2 * count or count > MAX_PIECES:
        return None
    hashes, ends = list(begin.hashes), list(begin.ends)
    hashes += array("Q", packed.hashes)
    end = begin.size
    for size in array("H", packed.sizes):
        end += min(size, PIECE)
        ends.append(end)
    return PromptChain(hashes, ends)


def _common(prompt: PromptChain, answered: PromptChain) -> int:
    """How many pieces the two begin with."""
    count = min(len(prompt.hashes), len(answered.hashes), MAX_PIECES)
    if count and prompt.hashes[count - 1] == answered.hashes[count - 1]:
        return count
    return next((n for n in range(count) if prompt.hashes[n] != answered.hashes[n]), count)
