"""The engine behind the wire: it turns accepted requests into deltas of tokens, at its own pace."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from xxhash import xxh3_64_intdigest

from engines.simulator.answers import Answer, Kind, Token, looks_like_code, tokens
from engines.simulator.counters import Done, Tally, Times
from engines.simulator.faults import Script
from engines.simulator.kvcache import BlockPool
from engines.simulator.requests import GenerationRequest
from engines.simulator.scheduler import Scheduler, Sequence
from engines.simulator.schemas import document
from engines.simulator.settings import Settings
from engines.simulator.speculation import Speculation
from engines.simulator.stop_strings import StopStrings
from engines.simulator.tokens import EOS, token_id


class EngineFailedError(Exception):
    """A generation failed inside the engine; the message and the HTTP status are what clients are told."""

    def __init__(self, message: str, code: int = 500) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one answer.

    `tokens` is what was generated, an end-of-sequence token as one of empty text; `parts` is what may be shown of it.
    """

    index: int
    tokens: list[Token]
    parts: list[Token]
    finish_reason: str | None = None
    stop_reason: str | None = None


@dataclass(slots=True)
class _Running:
    """One answer in the making."""

    index: int
    sequence: Sequence
    source: Iterator[Token]
    limit: int
    rng: Random
    times: Times
    stops: StopStrings | None
    least: int
    code: bool
    generated: int = 0


@dataclass(slots=True)
class _Pace:
    """When the next step is due. Without a rate it only lets others run."""

    first: float
    rate: float
    jitter: float
    rng: Random
    clock: Callable[[], float]
    due: float | None = None

    async def wait(self) -> None:
        if not self.rate and not self.first:
            await asyncio.sleep(0)
            return
        now = self.clock()
        if self.due is None:
            wait, self.due = self.first, now
        else:
            wait = 1 / self.rate if self.rate else 0.0
        if self.jitter:
            wait *= 1 + self.jitter * self.rng.uniform(-1, 1)
        # A step that came late does not make the next ones come in a burst.
        self.due = max(self.due, now - wait) + wait
        await asyncio.sleep(max(0.0, self.due - now))


@dataclass(slots=True)
class Engine:
    """One simulated engine: its scheduler, its draft, its counts."""

    settings: Settings
    clock: Callable[[], float]
    """Monotonic seconds."""
    scheduler: Scheduler = field(init=False)
    speculation: Speculation = field(init=False)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(BlockPool(self.settings.kv_blocks), self.settings.max_num_seqs)
        self.speculation = Speculation(self.settings)
        self.tally = Tally(self.settings.context)

    async def generate(self, request: GenerationRequest, script: Script) -> AsyncGenerator[Delta, None]:
        """The deltas of all answers of a request, as they come.

        Closing the generator aborts what still runs; throwing EngineFailedError into it fails it.
        """
        changed = asyncio.Event()
        live = [self._start(request, script, index, changed) for index in range(len(request.prompts) * request.n)]
        pace = _Pace(
            first=self.settings.ttft if script.ttft is None else script.ttft,
            rate=self.settings.tokens_per_second if script.rate is None else script.rate,
            jitter=self.settings.jitter,
            rng=Random(request.voice ^ self.settings.seed),  # noqa: S311 - a pace that can be repeated
            clock=self.clock,
        )
        longest, given_up = 0, "abort"
        try:
            for running in live:
                self.scheduler.submit(running.sequence)
            while live:
                ready = [running for running in live if running.sequence.admitted]
                if not ready:
                    changed.clear()
                    await changed.wait()
                    continue
                await pace.wait()
                for running in ready:
                    # Somebody else's step may have preempted it.
                    if not running.sequence.admitted:
                        continue
                    delta = self._step(running, counted=script.counted)
                    if delta.finish_reason is not None:
                        live.remove(running)
                        longest = max(longest, running.generated)
                        self._finish(running, delta.finish_reason)
                    yield delta
            self.tally.request(request.n, longest)
        except EngineFailedError:
            given_up = "error"
            raise
        finally:
            for running in live:
                self._finish(running, given_up)

    def _start(self, request: GenerationRequest, script: Script, index: int, changed: asyncio.Event) -> _Running:
        prompt = request.prompts[index // request.n]
        mixed = f"{request.voice}:{index % request.n}:".encode() + prompt.text.encode("utf-8", "surrogatepass")
        seed = xxh3_64_intdigest(mixed)
        exact = script.exact
        if exact is None and request.json_schema is not None:
            exact = document(request.json_schema, seed)
        code = looks_like_code(prompt.asked)
        answer = Answer(
            seed=seed,
            prompt=prompt.asked,
            code=code,
            fenced=request.chat,
            thinking=request.thinking,
            exact=exact,
            length=script.length,
            calls=tuple((name, document(schema, seed)) for name, schema in request.calls),
            least=request.min_tokens,
            endless=request.ignore_eos,
        )
        times = Times(self.clock())

        def admitted() -> None:
            times.admitted = times.admitted or self.clock()
            changed.set()

        return _Running(
            index=index,
            sequence=Sequence(prompt.tokens, request.salt, admitted),
            source=tokens(answer),
            limit=request.limits[index // request.n],
            rng=Random(seed ^ self.settings.seed),  # noqa: S311 - accepted drafts that can be repeated
            times=times,
            stops=StopStrings(request.stop, keep=request.keep_stop) if request.stop else None,
            least=request.min_tokens,
            code=code,
        )

    def _step(self, running: _Running, *, counted: bool) -> Delta:
        # The first step computes the prompt and yields one token; a draft only helps after it. A fault that waits for a
        # number of tokens needs them one by one.
        steps = 1 if counted or not running.generated else self.speculation.step(running.rng, code=running.code)
        got: list[Token] = []
        parts: list[Token] = []
        reason = stop = None
        while len(got) < steps and reason is None:
            token = next(running.source, _END)
            got.append(token)
            running.generated += 1
            visible = token
            if running.stops is not None and token.kind is Kind.CONTENT and running.generated > running.least:
                text, stop = running.stops.feed(token.text)
                visible = Token(text)
            if stop is not None or token is _END:
                reason = "stop"
            elif running.generated >= running.limit:
                reason = "length"
            if reason is not None and stop is None and running.stops is not None and token.kind is Kind.CONTENT:
                visible = Token(visible.text + running.stops.rest())
            _append(parts, visible)
        self._account(running, got)
        return Delta(running.index, got, parts, reason, stop)

    def _account(self, running: _Running, got: list[Token]) -> None:
        sequence = running.sequence
        first = not running.times.first
        prompt, cached = (len(sequence.prompt), sequence.cached_tokens) if first else (0, 0)
        self.tally.step(running.times, self.clock(), len(got), prompt, cached)
        for token in got:
            number = token_id(token.text) if token.text else EOS
            if sequence.admitted:
                self.scheduler.grow(sequence, number)
            else:
                # Preempted within this step; its blocks come back when it is admitted again.
                sequence.tokens.append(number)

    def _finish(self, running: _Running, reason: str) -> None:
        sequence = running.sequence
        self.scheduler.finish(sequence)
        done = Done(
            len(sequence.prompt), sequence.cached_tokens, running.generated, running.limit, sequence.preemptions
        )
        self.tally.finish(reason, running.times, self.clock(), done)


_END = Token("")


def _append(parts: list[Token], token: Token) -> None:
    """Add text to show, to the last part where it belongs to the same field."""
    if not token.text:
        return
    if parts and (parts[-1].kind, parts[-1].call) == (token.kind, token.call):
        parts[-1] = Token(parts[-1].text + token.text, token.kind, token.call)
    else:
        parts.append(token)
