"""Estimates the time to the first token at each engine, and chooses by it.

Theory. An engine computes the part of a prompt that its prefix cache does not hold, after the prompts that were sent
before it. So the time to the first token is

    queue + seconds_per_token * uncached tokens

- `uncached`: what the engine's PrefixIndex does not find.
- `seconds_per_token`: learned from the first tokens of requests that had nothing in front of them. Without new ones it
  fades to that of the fastest engine: an engine that was slow once (at its start, for example) would else get no
  request that could show that it is not.
- `queue`: the time until what was sent is worked off. It passes by itself, and each first token corrects it.

The least time for this request alone is not the best choice for all. Tokens that are computed once more evict others,
which are then computed again, so an uncached token counts more at an engine that has stored more new tokens lately than
the others (`excess`). With equal inflow, the caches of all engines are one cache with one order of eviction. A request
in flight makes each step a little longer, which counts as IN_FLIGHT_TOKENS.

    cost = queue + seconds_per_token * (uncached * max(0.5, 1 + EXCESS_WEIGHT * excess) + IN_FLIGHT_TOKENS * in_flight)

An engine with far more requests than the mean of all (LOAD_BOUND, LOAD_MARGIN) counts as if it held nothing of the
prompt: else one long prefix that all prompts have would keep them all at one engine, since each of the others would
have to compute it once. Then another computes it, and holds it too.

Where a prompt is new to all engines, its home (affinity.py) breaks the tie: elsewhere it costs `away_tokens` more.
Where other processes send prompts that this one does not learn of, that is more than a tie-break: the home is where
they will look for the prefix, too.

`now` is in seconds of one monotonic clock. Sizes of prompts are in bytes where a name has no `tokens`.
"""

from collections.abc import Collection, Mapping, Sequence
from math import exp
from types import MappingProxyType
from typing import Final

import msgspec

from router.core.routing.prefix_cache.affinity import rendezvous_weight
from router.core.routing.prefix_cache.kv_blocks import NO_BLOCKS, PromptBlocks
from router.core.routing.prefix_cache.prefix_index import PrefixIndex
from router.core.routing.prefix_cache.prompt_chain import PIECE, PromptChain
from router.core.types import BYTES_PER_TOKEN

EXCESS_WEIGHT: Final = 2.0
AWAY_TOKENS: Final = 64.0
"""The uncached tokens that an engine other than the home counts more: little, so that a held prefix counts more."""

SESSION_AWAY_TOKENS: Final = 512.0
"""The same for a prompt of a session: its next turn may have another beginning than this one."""

IN_FLIGHT_TOKENS: Final = 4.0
"""The uncached tokens that a request in flight counts as: each step of the prefill takes longer by its decoding."""

LOAD_BOUND: Final = 1.5
LOAD_MARGIN: Final = 8.0
"""The requests in flight up to which an engine's prefixes count: LOAD_BOUND times the mean, and LOAD_MARGIN more."""

DEFAULT_SECONDS_PER_TOKEN: Final = 1 / 16000
"""Until it is known: about that of a model with 8 billion parameters on one H100."""

DEFAULT_CAPACITY_TOKENS: Final = 1 << 19
"""Of an engine that does not report the size of its KV cache. More than it has costs less than too little."""

# The least weight of an uncached token: an idle engine must not take a long conversation from the one that holds it.
_MIN_FACTOR: Final = 0.5
_LITTLE_INFLOW: Final = 1 / 32  # of the capacity; where all have stored less, nothing is pushed out soon
_INFLOW_FADING: Final = 30.0  # seconds in which the inflow fades to 1/e
_RATE_FADING: Final = 60.0  # seconds without a measurement in which the difference to the fastest fades to 1/e
_RATE_DECAY: Final = 0.95  # the weight of the earlier measurements after each new one
_MIN_MEASURED_TOKENS: Final = 256  # with fewer, other things than the prefill take the time
_MAX_SECONDS_PER_TOKEN: Final = 0.1
_CAPACITY_STEP: Final = 0.015  # a prompt with less, or more, cached than expected changes the believed size so much
_CAPACITY_RANGE: Final = (0.3, 1.5)  # of the size that the engine reports
_RESET_TOKENS: Final = 1024  # so many tokens were believed to be cached, and none was: the cache was reset
_TOKEN_BYTES_RANGE: Final = (1.0, 16.0)
_FIRST_MEAN_UNCACHED: Final = 256.0


class PrefillEstimate(msgspec.Struct, frozen=True, gc=False):
    """What an engine would need for a prompt. `queue`, `cost` in seconds.

    `others_delay`: the seconds for which it would delay the answers of others there, added up.
    """

    url: str
    prompt_tokens: int
    cached_tokens: int
    queue: float
    seconds_per_token: float
    cost: float
    others_delay: float = 0.0

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def ttft(self) -> float:
        """The expected time to the first token in seconds."""
        return self.queue + self.seconds_per_token * self.uncached_tokens


class PrefixIndexStatus(msgspec.Struct, frozen=True, gc=False):
    """What a router process believes of an engine's prefix cache, for people; None is unknown.

    - `tokens`: that it holds; `capacity_tokens`: that it has room for. `entries`: pieces of prompts.
    - `unused_seconds`: since the last use of what it would drop first, at least so many.
    - `seconds_per_token`: that it takes for a token that it does not hold.
    """

    tokens: int
    capacity_tokens: int
    entries: int
    unused_seconds: float | None
    seconds_per_token: float | None


class SentPrompt(msgspec.Struct, eq=False):
    """A prompt that an engine has. `is_alone`: nothing was before it. `is_done`: nothing of it is left to compute."""

    chain: PromptChain
    prompt_tokens: int
    cached_tokens: int
    uncached_tokens: int
    seconds_per_token: float
    sent_at: float
    is_alone: bool
    is_done: bool = False


class EnginePrefill:
    """What is known of one engine's prefix cache and queue.

    - `pending_tokens`, `pending`: uncached tokens, and the number of prompts, that were sent and have no first token.
    - `remote`: requests of other processes at the engine, as far as this one hears of them.
    - `model`: what it serves; only engines of one model are compared by their speed.
    - `blocks`: what its KV events say, if it has any.
    """

    __slots__ = (
        "_busy_until",
        "_inflow",
        "_inflow_at",
        "_mean_uncached",
        "_measured_at",
        "_measured_seconds",
        "_measured_tokens",
        "_prompt_bytes",
        "_prompt_tokens",
        "_reported_capacity_tokens",
        "_scale",
        "blocks",
        "index",
        "model",
        "pending",
        "pending_tokens",
        "remote",
    )  # fmt: skip

    def __init__(self) -> None:
        self.model = ""
        self.pending = 0
        self.remote = 0
        self.pending_tokens = 0
        self._busy_until = 0.0
        self._inflow = self._inflow_at = 0.0
        self._measured_seconds = self._measured_tokens = self._measured_at = 0.0
        self._mean_uncached = _FIRST_MEAN_UNCACHED
        self._prompt_bytes = self._prompt_tokens = 0.0
        self._reported_capacity_tokens = DEFAULT_CAPACITY_TOKENS
        self._scale = 1.0  # of the believed capacity
        self.index = PrefixIndex(0)
        self.blocks: PromptBlocks = NO_BLOCKS
        self._update_capacity()

    # -- what is known ------------------------------------------------------------------------------------------------

    @property
    def measured_seconds_per_token(self) -> float | None:
        return self._measured_seconds / self._measured_tokens if self._measured_tokens else None

    def seconds_per_token(self, fastest: float, now: float) -> float:
        measured = self.measured_seconds_per_token
        if measured is None or measured <= fastest:
            return fastest
        return fastest + (measured - fastest) * exp(min(0.0, self._measured_at - now) / _RATE_FADING)

    def forecast_rate(self, rate: float, now: float) -> float:
        """The seconds per token for a promise. What was measured fades: a refused request measures nothing."""
        share = exp(min(0.0, self._measured_at - now) / _RATE_FADING)
        return min(rate, DEFAULT_SECONDS_PER_TOKEN + (rate - DEFAULT_SECONDS_PER_TOKEN) * share)

    @property
    def token_bytes(self) -> float:
        if not self._prompt_tokens:
            return BYTES_PER_TOKEN
        low, high = _TOKEN_BYTES_RANGE
        return min(high, max(low, self._prompt_bytes / self._prompt_tokens))

    @property
    def capacity_tokens(self) -> float:
        return self._reported_capacity_tokens * self._scale

    def status(self, now: float) -> PrefixIndexStatus:
        oldest, rate = self.index.oldest_use(), self.measured_seconds_per_token
        return PrefixIndexStatus(
            tokens=int(self.index.size / self.token_bytes),
            capacity_tokens=int(self.capacity_tokens),
            entries=len(self.index),
            unused_seconds=None if oldest is None else round(max(0.0, now - oldest), 1),
            seconds_per_token=None if rate is None else round(rate, 9),
        )

    def inflow(self, now: float) -> float:
        """New tokens that it has stored lately; they fade."""
        return self._inflow * exp((self._inflow_at - now) / _INFLOW_FADING) if self._inflow else 0.0

    def queue(self, now: float) -> float:
        """Seconds until the prompts that were sent are worked off."""
        return max(0.0, self._busy_until - now)

    def others_queue(self, waiting: float | None, seconds_per_token: float) -> float:
        """Seconds for the prompts of others, as far as the engine reports more waiting prompts than were sent."""
        others = 0.0 if waiting is None else max(0.0, waiting - self.pending)
        return others * self._mean_uncached * seconds_per_token

    def set_capacity_tokens(self, tokens: int | None) -> None:
        """The size of its KV cache, as it reports it; None: it does not."""
        tokens = tokens or DEFAULT_CAPACITY_TOKENS
        if tokens != self._reported_capacity_tokens:
            self._reported_capacity_tokens, self._scale = tokens, 1.0
            self._update_capacity()

    def _update_capacity(self) -> None:
        self.index.capacity = int(self.capacity_tokens * self.token_bytes)

    # -- what happens -------------------------------------------------------------------------------------------------

    def on_sent(self, chain: PromptChain, seconds_per_token: float, now: float) -> SentPrompt:
        held = self.index.match(chain.hashes)
        token_bytes = self.token_bytes
        tokens = int(chain.size / token_bytes)
        cached = int(chain.ends[held - 1] / token_bytes) if held else 0
        is_alone = not self.pending and self.queue(now) == 0
        sent = SentPrompt(chain, tokens, cached, tokens - cached, seconds_per_token, now, is_alone)
        self.pending += 1
        self.pending_tokens += sent.uncached_tokens
        self._busy_until = max(now, self._busy_until) + seconds_per_token * sent.uncached_tokens
        self._mean_uncached = self._mean_uncached * _RATE_DECAY + sent.uncached_tokens * (1 - _RATE_DECAY)
        self._add_inflow(sent.uncached_tokens, now)
        self.index.add(chain)
        return sent

    def on_first_token(self, sent: SentPrompt, now: float) -> None:
        uncached = sent.uncached_tokens
        self.on_ended(sent, now)
        if sent.is_alone and uncached >= _MIN_MEASURED_TOKENS:
            seconds = min(now - sent.sent_at, _MAX_SECONDS_PER_TOKEN * uncached)
            weight = _RATE_DECAY * exp(min(0.0, self._measured_at - now) / _RATE_FADING)
            self._measured_seconds = self._measured_seconds * weight + seconds
            self._measured_tokens = self._measured_tokens * weight + uncached
            self._measured_at = now

    def on_answered(
        self, sent: SentPrompt, answered: PromptChain, now: float, *, prompt_tokens: int, completion_tokens: int,
        cached_tokens: int | None,
    ) -> None:  # fmt: skip
        """`answered`: the chain of the prompt with the answer. The tokens are as the engine reports them; 0 and None
        are unknown.
        """
        self.on_ended(sent, now)
        if prompt_tokens and sent.chain.size >= PIECE:  # the template adds too much to a short one
            self._prompt_bytes = self._prompt_bytes * _RATE_DECAY + sent.chain.size
            self._prompt_tokens = self._prompt_tokens * _RATE_DECAY + prompt_tokens
        if cached_tokens is not None and sent.prompt_tokens:
            self._correct(sent, cached_tokens, prompt_tokens)
        self._update_capacity()
        self.add_answer(answered, completion_tokens, now)

    def add_answer(self, answered: PromptChain, completion_tokens: int, now: float) -> None:
        """It holds a prompt with its answer."""
        self._add_inflow(completion_tokens, now)
        self.index.add(answered)

    def _correct(self, sent: SentPrompt, cached_tokens: int, prompt_tokens: int) -> None:
        """Compares what was believed with what the engine reports."""
        believed = sent.cached_tokens
        if cached_tokens == 0 and believed >= _RESET_TOKENS and 2 * believed > sent.prompt_tokens:
            self.index.clear()  # it was restarted, or its cache reset
            return
        # A piece that the engine holds in part counts as held, and the template adds tokens: so much is no error.
        tolerance = max(256, prompt_tokens // 32)
        low, high = _CAPACITY_RANGE
        if cached_tokens < believed - tolerance:
            self._scale = max(low, self._scale * (1 - _CAPACITY_STEP))
        elif cached_tokens > believed + tolerance:
            self._scale = min(high, self._scale * (1 + _CAPACITY_STEP))

    def on_ended(self, sent: SentPrompt, now: float) -> None:
        """The engine has computed the prompt, or will not; more than once is fine."""
        if sent.is_done:
            return
        sent.is_done = True
        self.pending -= 1
        self.pending_tokens -= sent.uncached_tokens
        # First come, first served: what was sent after it is what is left.
        self._busy_until = min(self._busy_until, now + sent.seconds_per_token * self.pending_tokens)

    def forget(self) -> None:
        """It was restarted, so its prefix cache is empty."""
        self.index.clear()
        self.blocks.forget()
        self._inflow = 0.0

    def _add_inflow(self, tokens: int, now: float) -> None:
        self._inflow = self.inflow(now) + tokens
        self._inflow_at = now


class EngineLoad(msgspec.Struct, frozen=True, gc=False):
    """`in_flight`: requests at the engine, of whomever. `waiting`: those that it reports to wait; None is unknown."""

    url: str
    in_flight: float
    waiting: float | None = None


class Prefills:
    """What is known of each engine, by its URL. Its size is bounded by the engines of the configuration; see `keep`."""

    def __init__(self) -> None:
        self._engines: dict[str, EnginePrefill] = {}

    def of(self, url: str) -> EnginePrefill:
        found = self._engines.get(url)
        if found is None:
            found = self._engines[url] = EnginePrefill()
        return found

    def known(self, url: str) -> EnginePrefill | None:
        """As `of`, for a URL that may not be one of the configuration."""
        return self._engines.get(url)

    def items(self) -> Sequence[tuple[str, EnginePrefill]]:
        """All engines by their URLs."""
        return list(self._engines.items())

    def keep(self, urls: Collection[str], models: Mapping[str, str] = MappingProxyType({})) -> None:
        """Knows these engines, and forgets all others. `models`: by URL, what an engine serves."""
        self._engines = {url: self.of(url) for url in urls}
        for url, engine in self._engines.items():
            engine.model = models.get(url, "")

    def seconds_per_token(self, url: str, now: float) -> float:
        """Of one engine; where it is unknown, of the fastest of its model."""
        engine = self.of(url)
        return engine.seconds_per_token(self._fastest(engine.model), now)

    def _fastest(self, model: str) -> float:
        """The least seconds per token; an engine of which nothing is known is tried if it counts as fast."""
        engines = (engine for engine in self._engines.values() if engine.model == model)
        measured = (engine.measured_seconds_per_token for engine in engines)
        return min((rate for rate in measured if rate), default=DEFAULT_SECONDS_PER_TOKEN)

    def estimates(
        self, chain: PromptChain, loads: Sequence[EngineLoad], now: float, *, home: int, away_tokens: float
    ) -> Mapping[str, PrefillEstimate]:
        """By URL, the estimates of engines that could serve a prompt.

        `home`: what the prompt's home is derived from; 0 for a prompt without one. `away_tokens`: what each of the
        others costs more.
        """
        engines = [self.of(load.url) for load in loads]
        # Also of those of the model that are not compared here: an engine that was slow once fades to it.
        fastest = self._fastest(engines[0].model)
        # Of all together: the same prompt has as many tokens at each.
        token_bytes = sum(engine.token_bytes for engine in engines) / len(engines)
        tokens = int(chain.size / token_bytes)
        mean_in_flight = sum(load.in_flight for load in loads) / len(loads)
        most_in_flight = LOAD_BOUND * mean_in_flight + LOAD_MARGIN
        inflows = [engine.inflow(now) for engine in engines]
        mean_inflow = sum(inflows) / len(inflows)
        little_inflow = _LITTLE_INFLOW * sum(engine.capacity_tokens for engine in engines) / len(engines)
        home_url = max((load.url for load in loads), key=lambda url: rendezvous_weight(home, url)) if home else None
        found = {}
        for load, engine, inflow in zip(loads, engines, inflows, strict=True):
            held = engine.index.match(chain.hashes)
            cached = int(chain.ends[held - 1] / token_bytes) if held else 0
            counted = cached if load.in_flight <= most_in_flight else 0
            rate = engine.seconds_per_token(fastest, now)
            excess = (inflow - mean_inflow) / (mean_inflow + little_inflow)
            weighted = (tokens - counted) * max(
                _MIN_FACTOR, 1 + EXCESS_WEIGHT * excess
            ) + IN_FLIGHT_TOKENS * load.in_flight
            if home and load.url != home_url:
                weighted += away_tokens
            queue = engine.queue(now) + engine.others_queue(load.waiting, rate)
            # The steps that compute the prompt also generate, and so they all take longer.
            others_delay = rate * (tokens - cached) * mean_in_flight
            cost = queue + rate * weighted
            found[load.url] = PrefillEstimate(load.url, tokens, cached, queue, rate, cost, others_delay)
        return found
