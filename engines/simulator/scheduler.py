"""Who runs and who waits: first come, first served, within the sequences and the KV blocks that there are.

A sequence that needs a block when none is free preempts the one that was admitted last, as vLLM does: that one gives
its blocks back and waits at the head of the queue to be computed again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engines.simulator.kvcache import BlockPool, SequenceBlocks, block_hash, block_hashes
from engines.simulator.settings import BLOCK_SIZE


@dataclass(slots=True, eq=False)
class Sequence:
    """One answer in the making. `wake` is called when it is admitted."""

    prompt: tuple[int, ...]
    salt: int
    on_admitted: Callable[[], None]
    tokens: list[int] = field(default_factory=list)
    """Prompt and answer so far."""
    blocks: SequenceBlocks = field(default_factory=SequenceBlocks)
    last_hash: int = 0
    """Hash of the last full block."""
    admitted: bool = False
    cached_tokens: int = 0
    preemptions: int = 0
    queried: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)


@dataclass(slots=True)
class SchedulerCounts:
    """What has happened since the start, in tokens but for the preemptions."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


class Scheduler:
    """Admission and growth of sequences over one pool of blocks."""

    def __init__(self, pool: BlockPool, max_num_seqs: int) -> None:
        self.pool = pool
        self.counts = SchedulerCounts()
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def running(self) -> int:
        """Sequences that are being generated."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for room."""
        return len(self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence; it may be admitted at once."""
        self._waiting.append(sequence)
        self._admit()

    def append_token(self, sequence: Sequence, token: int) -> None:
        """Add a generated token. The sequence may be preempted by it: then it is no longer admitted afterwards."""
        sequence.tokens.append(token)
        length = len(sequence.tokens)
        if length % BLOCK_SIZE == 0:
            sequence.last_hash = block_hash(sequence.last_hash, sequence.tokens[-BLOCK_SIZE:])
            self.pool.cache_full_block(sequence.blocks, sequence.last_hash)
        elif length % BLOCK_SIZE == 1:
            while sequence.admitted and not self.pool.append_block(sequence.blocks):
                self._preempt(self._running[-1])

    def finish(self, sequence: Sequence) -> None:
        """A sequence ended or was given up; finishing twice does nothing."""
        if sequence.admitted:
            self._running.remove(sequence)
            sequence.admitted = False
            self.pool.free(sequence.blocks)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._admit()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._max_num_seqs:
            sequence = self._waiting[0]
            hashes = block_hashes(sequence.salt, sequence.tokens)
            started = self.pool.allocate(hashes, len(sequence.tokens))
            if started is None:
                return
            self._waiting.popleft()
            sequence.blocks, cached = started
            sequence.last_hash = hashes[-1] if hashes else sequence.salt
            if not sequence.queried:
                # vLLM counts a preempted request's second look at the cache apart; its users only see the first.
                sequence.queried, sequence.cached_tokens = True, cached
                self.counts.prefix_queries += len(sequence.tokens)
                self.counts.prefix_hits += cached
            sequence.admitted = True
            self._running.append(sequence)
            sequence.on_admitted()

    def _preempt(self, victim: Sequence) -> None:
        self._running.remove(victim)
        victim.admitted = False
        victim.preemptions += 1
        self.counts.preemptions += 1
        self.pool.free(victim.blocks)
        self._waiting.appendleft(victim)
