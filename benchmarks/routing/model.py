"""A model of a vLLM replica: the scheduler, its KV blocks and the time that its steps take.

Theory of operation. A replica works in steps. A step generates a token for each sequence whose prompt is computed, and
computes prompt tokens with what these leave of the token budget (chunked prefill, first come, first served). It takes
`base + decode * sequences + prefill * prompt tokens` seconds. A prompt token costs nothing if its block is in the
pool, which evicts the least recently used blocks. If a sequence that generates finds no free block, the sequence that
was admitted last is preempted: it loses its blocks, waits at the front, and is computed again.

With a draft, a step yields several tokens for each sequence: how many depends on the draft and on the text. Without its
prompt tokens, it takes `DRAFT_FACTOR` times as long.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

from engines.simulator.kv_cache.block_pool import BlockPool, SequenceBlocks
from engines.simulator.settings import BLOCK_SIZE

DRAFT_FACTOR: Final = 1.3
"""How much longer the steps of a replica take with a draft, without their prompt tokens."""


@dataclass(frozen=True)
class Speeds:
    """Times in seconds. The defaults are about those of an 8B model on an H100 with little memory for KV blocks.

    - `base`: of every step. `decode`: of a sequence that generates a token. `prefill`: of a prompt token.
    - `budget`: tokens of a step. `sequences`: that run at once. `blocks`: of the pool, of 16 tokens each.
    """

    base: float = 0.008
    decode: float = 0.00012
    prefill: float = 1 / 16_000
    budget: int = 4096
    sequences: int = 128
    blocks: int = 8192

    def slower(self, factor: float) -> Self:
        return replace(self, base=self.base * factor, decode=self.decode * factor, prefill=self.prefill * factor)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request at a replica. `hashes`: of the full blocks of its prompt and answer; `prompt`, `answer`: tokens.

    - `cached`: the prompt tokens that it found in the pool when it was first admitted.
    - `left`: the tokens that are computed before its next one is generated; an estimate while it waits.
    - `yields`: the tokens of a step, by the draft of the replica; 1 for others.
    - `steps`: those that have generated tokens.
    """

    hashes: list[int]
    prompt: int
    answer: int
    cached: int = 0
    generated: int = 0
    left: int = 0
    was_admitted: bool = False
    yields: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0
    blocks: SequenceBlocks = field(default_factory=SequenceBlocks)

    @property
    def length(self) -> int:
        return self.prompt + self.generated

    @property
    def full_blocks(self) -> list[int]:
        return self.hashes[: self.length // BLOCK_SIZE]


@dataclass(frozen=True)
class StepResult:
    """The sequences that got their first token in a step, and those that have all."""

    first: list[Sequence]
    done: list[Sequence]


class Replica:
    """- `draft`: its name; empty without one.
    - `is_present`: whether it gets requests. One that leaves completes what it has.
    - `step_end`: when the current step ends; None without one.
    """

    def __init__(self, speeds: Speeds, draft: str = "") -> None:
        self.draft = draft
        generation = DRAFT_FACTOR if draft else 1.0
        self.speeds = replace(speeds, base=speeds.base * generation, decode=speeds.decode * generation)
        self.pool = BlockPool(speeds.blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in the order of their admission
        self.is_present = True
        self.step_end: float | None = None
        self.preemptions = 0
        self.prompt_tokens = self.cached_tokens = 0
        self._waiting_blocks: Counter[int] = Counter()

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self.running)

    def submit(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)
        self._expect(sequence)

    def restart(self) -> None:
        """Begins with an empty pool; one that still has sequences is not restarted."""
        if not self.in_flight:
            self.pool = BlockPool(self.speeds.blocks)

    # -- what an oracle knows -----------------------------------------------------------------------------------------

    def expected_hits(self, hashes: list[int], prompt: int) -> int:
        """The tokens of a prompt that would be found, if those that wait are computed before."""
        found = 0
        for value in hashes[: (prompt - 1) // BLOCK_SIZE]:
            if value not in self.pool and value not in self._waiting_blocks:
                break
            found += 1
        return found * BLOCK_SIZE

    def seconds_to_first_token(self, uncached: int, now: float) -> float:
        """An estimate for a prompt of which so many tokens are not cached."""
        decoding = sum(not sequence.left for sequence in self.running)
        queued = sum(sequence.left for sequence in (*self.running, *self.waiting))
        tokens = queued + uncached
        steps = -(-tokens // max(1, self.speeds.budget - decoding))
        rest = max(0.0, self.step_end - now) if self.step_end is not None else 0.0
        return rest + tokens * self.speeds.prefill + steps * (self.speeds.base + self.speeds.decode * decoding)

    # -- steps --------------------------------------------------------------------------------------------------------

    def start_step(self, now: float) -> bool:
        """Begins a step; False if there is nothing to do."""
        speeds = self.speeds
        has_room = self._reserve_blocks()
        decoding = sum(not sequence.left for sequence in self.running)
        budget = rest = speeds.budget - decoding
        for sequence in self.running:
            rest -= _compute(sequence, rest)
        while has_room and rest > 0 and self.waiting and len(self.running) < speeds.sequences:
            if not self._admit(self.waiting[0]):
                break
            rest -= _compute(self.running[-1], rest)
        computed = budget - rest
        if not decoding and not computed:
            self.step_end = None
            return False
        self.step_end = now + speeds.base + speeds.decode * decoding + speeds.prefill * computed
        return True

    def end_step(self) -> StepResult:
        result = StepResult([], [])
        for sequence in [each for each in self.running if not each.left]:
            if not sequence.generated:
                result.first.append(sequence)
            self._generate(sequence)
            if sequence.generated >= sequence.answer:
                self.running.remove(sequence)
                self.pool.free(sequence.blocks)
                result.done.append(sequence)
        return result

    def _generate(self, sequence: Sequence) -> None:
        """The tokens of a step; fewer if there are no blocks for more."""
        sequence.steps += 1
        wanted = int(sequence.steps * sequence.yields.get(self.draft, 1.0)) if sequence.generated else 1
        while True:
            if sequence.generated and sequence.length % BLOCK_SIZE == 0:
                # Its last token fills a block. Those of the prompt are in the pool since it was admitted.
                self.pool.cache_full_block(sequence.blocks, sequence.full_blocks[-1])
            sequence.generated += 1
            if sequence.generated >= min(wanted, sequence.answer) or not self._has_block_for_next(sequence):
                return

    def _has_block_for_next(self, sequence: Sequence) -> bool:
        return sequence.blocks.count * BLOCK_SIZE >= sequence.length or self.pool.append_block(sequence.blocks)

    def _reserve_blocks(self) -> bool:
        """Blocks for the next token of each sequence; False if that preempts one: none is admitted then."""
        before, index = self.preemptions, 0
        while index < len(self.running):
            sequence = self.running[index]
            if self._has_block_for_next(sequence):
                index += 1
            else:
                self._preempt(self.running.pop())
        return self.preemptions == before

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self.pool.free(sequence.blocks)
        self.waiting.appendleft(sequence)
        self._expect(sequence)

    def _expect(self, sequence: Sequence) -> None:
        sequence.left = max(1, sequence.length - self.expected_hits(sequence.hashes, sequence.length))
        self._waiting_blocks.update(sequence.full_blocks)

    def _admit(self, sequence: Sequence) -> bool:
        hashes = sequence.full_blocks
        allocation = self.pool.allocate(hashes, sequence.length)
        if allocation is None:
            return False
        sequence.blocks, cached = allocation
        sequence.left = sequence.length - cached
        if not sequence.was_admitted:
            sequence.was_admitted, sequence.cached = True, cached
            self.prompt_tokens += sequence.prompt
            self.cached_tokens += cached
        self.running.append(self.waiting.popleft())
        for value in hashes:
            self._waiting_blocks[value] -= 1
            if not self._waiting_blocks[value]:
                del self._waiting_blocks[value]
        return True


def _compute(sequence: Sequence, budget: int) -> int:
    tokens = min(sequence.left, budget)
    sequence.left -= tokens
    return tokens
