"""The engine core: generates the tokens of accepted requests at the configured rate."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from engines.simulator.control.faults import FaultPlan
from engines.simulator.counters import EngineCounters, SequenceSizes, SequenceTimes
from engines.simulator.engine.pace import Pace, Pacer, SeparatePace
from engines.simulator.engine.scheduler import Scheduler, Sequence
from engines.simulator.engine.speculation import RequestSpeculation, SpeculativeDecoder
from engines.simulator.engine.steps import SharedPace
from engines.simulator.kv_cache.block_pool import BlockPool
from engines.simulator.kv_cache.kv_events import NO_KV_EVENTS, KvEvents
from engines.simulator.settings import BLOCK_SIZE, SimulatorSettings
from engines.simulator.text.answers import OutputSpec, Token, TokenKind, looks_like_code
from engines.simulator.text.continuations import Answer, AnswerKind, find_answer
from engines.simulator.text.schemas import sample_document
from engines.simulator.text.scripted_answers import rest_of_ids
from engines.simulator.text.stop_strings import StopStringMatcher
from engines.simulator.text.tokens import EOS, token_id
from engines.simulator.validation.requests import GenerationRequest


class EngineFailedError(Exception):
    """A generation failed inside the engine. The client receives the message and the HTTP status `code`."""

    def __init__(self, message: str, code: int = 500) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class PromptCaching:
    """Prompt tokens of one choice that the prefix cache held, and those that were stored there."""

    cached: int
    created: int


NOT_CACHED = PromptCaching(0, 0)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step adds to one choice.

    `tokens` are the generated tokens; an end-of-sequence token has an empty text. `parts` is the text of them that may
    be sent. `speculation` comes with the finish reason.
    """

    index: int
    tokens: list[Token]
    parts: list[Token]
    caching: PromptCaching
    finish_reason: str | None = None
    stop_reason: str | None = None
    speculation: RequestSpeculation | None = None


@dataclass(slots=True)
class _RunningSequence:
    """One choice that is being generated."""

    index: int
    sequence: Sequence
    source: Iterator[Token]
    limit: int
    rng: Random
    times: SequenceTimes
    stops: StopStringMatcher | None
    min_tokens: int
    code: bool
    speculation: RequestSpeculation | None
    generated: int = 0
    caching: PromptCaching = NOT_CACHED


@dataclass(slots=True)
class EngineCore:
    """One simulated engine: its scheduler, its speculative decoder and its counters."""

    settings: SimulatorSettings
    clock: Callable[[], float]
    """Monotonic seconds."""
    kv_events: KvEvents = NO_KV_EVENTS
    scheduler: Scheduler = field(init=False)
    speculation: SpeculativeDecoder = field(init=False)
    counters: EngineCounters = field(init=False)
    pace: Pace = field(init=False)
    _admits: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _steps: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _running: "set[_Generation]" = field(init=False, default_factory=set)
    _became_idle: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        settings = self.settings
        self.scheduler = Scheduler(
            BlockPool(settings.kv_blocks, self.kv_events.removed), settings.max_num_seqs, self.kv_events
        )
        self.pace = (
            SharedPace(self.scheduler, settings, self.clock)
            if settings.has_time_model
            else SeparatePace(self.scheduler, settings.tokens_per_second)
        )
        self.speculation = SpeculativeDecoder(self.settings)
        self.counters = EngineCounters(self.settings.context_length)
        self.resume()

    async def pause(self, mode: Literal["abort", "wait", "keep"]) -> None:
        """Schedules no new request until `resume`. Returns once none runs, or none makes another step (`keep`)."""
        self._admits.clear()
        if mode == "keep":
            self._steps.clear()
            return
        if mode == "abort":
            for generation in self._running:
                generation.is_aborted = True
        while self._running:
            self._became_idle.clear()
            await self._became_idle.wait()

    def resume(self) -> None:
        self._admits.set()
        self._steps.set()

    def reset_prefix_cache(self) -> bool:
        """Whether it succeeded: while sequences use blocks, it does not. The event is published with the next step."""
        if not self.scheduler.pool.clear():
            return False
        self.kv_events.cleared()
        return True

    async def generate(self, request: GenerationRequest, plan: FaultPlan) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of all choices of a request as they are generated.

        Closing the generator aborts the choices that still run; throwing EngineFailedError into it fails them.
        """
        await self._admits.wait()
        generation = self._new_generation(request, plan)
        unfinished_reason = "abort"
        self._running.add(generation)
        try:
            turns = self.pace.start(generation)
            if plan.prefill:
                await self._prefill_slowly(generation.live, plan.prefill)
            while generation.live:
                await turns.next()
                await self._steps.wait()
                if generation.is_aborted:
                    for running in generation.live.values():
                        yield Delta(running.index, [], [], running.caching, "abort")
                    return
                for delta in generation.take_deltas():
                    yield delta
            # Only for requests that run to their end.
            self.counters.record_request(request.n, generation.longest)
        except EngineFailedError:
            unfinished_reason = "error"
            raise
        finally:
            # What is still in `live` here was aborted by the client or has failed.
            for running in generation.live.values():
                self._finish(running, unfinished_reason)
            self._running.discard(generation)
            if not self._running:
                self._became_idle.set()

    def _new_generation(self, request: GenerationRequest, plan: FaultPlan) -> "_Generation":
        admitted = asyncio.Event()
        choices = [self._start(request, plan, index, admitted) for index in range(len(request.prompts) * request.n)]
        pacer = Pacer(
            first=self.settings.ttft if plan.ttft is None else plan.ttft,
            rate=self.pace.rate if plan.rate is None else plan.rate,
            jitter=self.settings.jitter,
            rng=Random(request.sampling_hash ^ self.settings.seed),  # noqa: S311 - the pace must be reproducible
            clock=self.clock,
        )
        live = {running.sequence: running for running in choices}
        return _Generation(self, live, pacer, admitted, single_tokens=plan.needs_single_tokens)

    async def _prefill_slowly(self, live: Iterable[Sequence], seconds: float) -> None:
        """As vLLM with chunked prefill: only the usage of the KV cache shows it, which grows with each chunk."""
        blocks, chunks = sum(sequence.blocks.count for sequence in live), max(1, round(seconds / _CHUNK))
        for chunk in range(chunks):
            unfilled = blocks * (1 - chunk / chunks)
            self.scheduler.unfilled_blocks += unfilled
            try:
                await asyncio.sleep(seconds / chunks)
            finally:
                self.scheduler.unfilled_blocks -= unfilled

    def _start(
        self, request: GenerationRequest, plan: FaultPlan, index: int, admissions: asyncio.Event
    ) -> _RunningSequence:
        prompt = request.prompts[index // request.n]  # the n choices of a prompt are adjacent
        kind = AnswerKind(code=looks_like_code(prompt.user_text), fenced=request.chat)

        def make_spec(seed: int, kind: AnswerKind, said: int) -> OutputSpec:
            exact = plan.exact
            if exact is None and request.json_schema is not None:
                exact = sample_document(request.json_schema, seed)
            return OutputSpec(
                seed=seed,
                code=kind.code,
                fenced=kind.fenced,
                reasoning=request.thinking,
                thought=request.thought,
                text_before_calls=request.text_before_calls,
                exact_text=exact,
                token_count=plan.length,
                tool_calls=tuple((name, sample_document(schema, seed)) for name, schema in request.tool_calls),
                min_tokens=said + request.min_tokens,
                ignore_eos=request.ignore_eos,
            )

        script = self.settings.tool_script
        scripted = rest_of_ids(script, prompt.tokens) if script is not None and prompt.from_ids else None
        # `index % n`: choices of one prompt differ, while equal prompts in one request give equal answers.
        answer = (
            find_answer(prompt, kind, request.sampling_hash, index % request.n, plan.exact, make_spec)
            if scripted is None
            else Answer(0, code=False, source=scripted)
        )
        seed = answer.seed
        times = SequenceTimes(self.clock())

        def admitted() -> None:
            # A preempted sequence is admitted again; the first time counts, as in vLLM's queue time.
            times.admitted = times.admitted or self.clock()
            admissions.set()

        return _RunningSequence(
            index=index,
            sequence=Sequence(prompt.tokens, request.origin, admitted),
            source=answer.source,
            limit=request.limits[index // request.n],
            rng=Random(seed ^ self.settings.seed),  # noqa: S311 - accepted drafts must be reproducible
            times=times,
            stops=StopStringMatcher(request.stop, include_stop=request.include_stop) if request.stop else None,
            min_tokens=request.min_tokens,
            code=answer.code,
            speculation=self.speculation.new_request(),
        )

    def step(self, running: _RunningSequence, *, single_tokens: bool) -> Delta:
        """The next step of one choice. If it ends, it leaves the scheduler."""
        # The first step computes the prompt and yields one token; speculative decoding starts with the second.
        # A fault that is due after a number of tokens needs one token per step.
        steps = 1
        if not running.generated:
            running.caching = _caching(running.sequence)
        if not single_tokens and running.generated:
            steps = self.speculation.step(running.rng, code=running.code)
            if running.speculation is not None:
                running.speculation.add(steps - 1)
        tokens: list[Token] = []
        parts: list[Token] = []
        reason = stop = None
        while len(tokens) < steps and reason is None:
            # The default is for the end of the text: the source has no end-of-sequence token.
            token = next(running.source, _EOS_TOKEN)
            tokens.append(token)
            running.generated += 1
            visible = token
            if running.stops is not None and token.kind is TokenKind.CONTENT and running.generated > running.min_tokens:
                # vLLM ignores stop strings in the first `min_tokens` tokens.
                text, stop = running.stops.feed(token.text)
                visible = Token(text)
            if stop is not None or token is _EOS_TOKEN:
                reason = "stop"
            elif running.generated >= running.limit:
                reason = "length"
            if reason is not None and stop is None and running.stops is not None and token.kind is TokenKind.CONTENT:
                # The end is not a stop string, so text held back for one is sent now.
                visible = Token(visible.text + running.stops.flush())
            _append_part(parts, visible)
        self._record_step(running, tokens)
        self.kv_events.publish()
        if reason is not None:
            self._finish(running, reason)
        speculation = running.speculation if reason is not None else None
        return Delta(running.index, tokens, parts, running.caching, reason, stop, speculation)

    def _record_step(self, running: _RunningSequence, tokens: list[Token]) -> None:
        sequence = running.sequence
        first = not running.times.first_token
        # The prompt counts once, with the first token, although a preemption computes it again.
        prompt, cached = (len(sequence.prompt), sequence.cached_tokens) if first else (0, 0)
        self.counters.record_step(running.times, self.clock(), len(tokens), prompt, cached)
        for token in tokens:
            number = token_id(token.text) if token.text else EOS
            if sequence.admitted:
                self.scheduler.append_token(sequence, number)
            else:
                # Preempted during this step. The pool allocates blocks for these tokens when it is admitted again.
                sequence.tokens.append(number)

    def _finish(self, running: _RunningSequence, reason: str) -> None:
        sequence = running.sequence
        self.scheduler.finish(sequence)
        self.pace.ended(sequence)
        sizes = SequenceSizes(
            len(sequence.prompt), sequence.cached_tokens, running.generated, running.limit, sequence.preemptions
        )
        self.counters.record_finished(reason, running.times, self.clock(), sizes)


@dataclass(slots=True, eq=False)
class _Generation:
    """One request while it is generated; `live` are its choices that have not ended."""

    engine: EngineCore
    live: dict[Sequence, _RunningSequence]
    pacer: Pacer
    admitted: asyncio.Event
    single_tokens: bool
    longest: int = 0
    is_aborted: bool = False
    _deltas: list[Delta] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        return list(self.live)

    def step(self, sequence: Sequence) -> None:
        running = self.live[sequence]
        delta = self.engine.step(running, single_tokens=self.single_tokens)
        if delta.finish_reason is not None:
            del self.live[sequence]
            self.longest = max(self.longest, running.generated)
        self._deltas.append(delta)

    def take_deltas(self) -> list[Delta]:
        """What the steps since the last call have made."""
        taken, self._deltas = self._deltas, []
        return taken


_EOS_TOKEN = Token("")
_CHUNK = 0.1  # seconds of a chunk of a slow prefill


def _caching(sequence: Sequence) -> PromptCaching:
    full = len(sequence.prompt) // BLOCK_SIZE * BLOCK_SIZE
    return PromptCaching(sequence.cached_tokens, max(0, full - sequence.cached_tokens))


def _append_part(parts: list[Token], token: Token) -> None:
    if not token.text:
        return
    if parts and (parts[-1].kind, parts[-1].call_index) == (token.kind, token.call_index):
        parts[-1] = Token(parts[-1].text + token.text, token.kind, token.call_index)
    else:
        parts.append(token)
