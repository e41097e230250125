"""First come, first served scheduling within the limits of sequences and KV blocks.

If a running sequence needs a block and none is free, the sequence that was admitted last is preempted, as in vLLM: it
gives its blocks back, goes to the head of the queue and is computed again later.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engines.simulator.kv_cache.block_pool import BlockPool, SequenceBlocks, block_hash, block_hashes
from engines.simulator.kv_cache.kv_events import NO_KV_EVENTS, BlockOrigin, KvEvents
from engines.simulator.settings import BLOCK_SIZE


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice that is being generated. `on_admitted` is called at each admission."""

    prompt: tuple[int, ...]
    origin: BlockOrigin
    on_admitted: Callable[[], None]
    tokens: list[int] = field(default_factory=list)
    """Prompt and generated tokens."""
    blocks: SequenceBlocks = field(default_factory=SequenceBlocks)
    last_hash: int = 0
    """Hash of the last full block; of none, the start of the chain, so different origins never share blocks."""
    admitted: bool = False
    cached_tokens: int = 0
    uncomputed: int = 0
    """Tokens that are to be computed before the next one can be generated; counted at each admission."""
    preemptions: int = 0
    queried: bool = False

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)


@dataclass(slots=True)
class SchedulerCounts:
    """Totals since the start, in tokens except `preemptions`."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


class Scheduler:
    """Admission and growth of sequences over one block pool. The owner decides when sequences are admitted."""

    def __init__(self, pool: BlockPool, max_num_seqs: int, events: KvEvents = NO_KV_EVENTS) -> None:
        self.pool = pool
        self._events = events
        self.counts = SchedulerCounts()
        self.unfilled_blocks = 0.0
        """Blocks of prompts that are being prefilled, of which vLLM has not allocated all yet."""
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def running_sequences(self) -> Iterable[Sequence]:
        """In the order of their admission."""
        return self._running

    @property
    def waiting(self) -> int:
        """Sequences that wait for a slot or for KV blocks."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that are used, 0 to 1."""
        return max(0.0, self.pool.usage - self.pool.share(self.unfilled_blocks))

    def submit(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self._waiting.append(sequence)

    def admit(self) -> None:
        """Admits all sequences that there is room for."""
        while self.admit_next() is not None:
            pass

    def append_token(self, sequence: Sequence, token: int) -> None:
        """Appends a generated token. This may preempt the sequence itself: then `admitted` is False afterwards."""
        sequence.tokens.append(token)
        length = len(sequence.tokens)
        if length % BLOCK_SIZE == 0:
            parent = sequence.last_hash if length > BLOCK_SIZE else None
            tokens = sequence.tokens[-BLOCK_SIZE:]
            sequence.last_hash = block_hash(sequence.last_hash, tokens)
            if self.pool.cache_full_block(sequence.blocks, sequence.last_hash):
                self._events.stored(sequence.origin, parent, [sequence.last_hash], tokens)
        # The token is the first of a new block.
        elif length % BLOCK_SIZE == 1:
            # A new block is needed. Preempt the newest sequence until a block is free; this one may be the newest.
            while sequence.admitted and not self.pool.append_block(sequence.blocks):
                self._preempt(self._running[-1])

    def finish(self, sequence: Sequence) -> None:
        """Removes a sequence that has ended or is aborted. Finishing twice does nothing."""
        if sequence.admitted:
            self._running.remove(sequence)
            sequence.admitted = False
            self.pool.free(sequence.blocks)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def admit_next(self) -> Sequence | None:
        """Admits the head of the queue, and returns it; None if there is none or no room for it."""
        if not self._waiting or len(self._running) >= self._max_num_seqs:
            return None
        sequence = self._waiting[0]
        start = sequence.origin.chain_start
        hashes = block_hashes(start, sequence.tokens)
        allocation = self.pool.allocate(hashes, len(sequence.tokens))
        if allocation is None:
            # First come, first served: nothing overtakes the head of the queue, as in vLLM's default policy.
            return None
        self._waiting.popleft()
        sequence.blocks, cached = allocation
        sequence.last_hash = hashes[-1] if hashes else start
        # Those that are cached begin the prompt; but its last block is computed again, since its last token always is.
        first = cached // BLOCK_SIZE
        if stored := len(sequence.blocks.hashed) - first:
            parent = hashes[first - 1] if first else None
            tokens = sequence.tokens[cached : (first + stored) * BLOCK_SIZE]
            self._events.stored(sequence.origin, parent, hashes[first : first + stored], tokens)
        sequence.uncomputed = len(sequence.tokens) - cached
        if not sequence.queried:
            # vLLM counts the prefix-cache query of a resumed request separately; its metrics show only the first.
            sequence.queried, sequence.cached_tokens = True, cached
            self.counts.prefix_queries += len(sequence.tokens)
            self.counts.prefix_hits += cached
        sequence.admitted = True
        self._running.append(sequence)
        sequence.on_admitted()
        return sequence

    def _preempt(self, victim: Sequence) -> None:
        self._running.remove(victim)
        victim.admitted = False
        victim.preemptions += 1
        self.counts.preemptions += 1
        self.pool.free(victim.blocks)
        # The head of the queue: a preempted sequence has already waited once.
        self._waiting.appendleft(victim)
