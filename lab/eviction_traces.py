"""Seeded traces of requests for lab/eviction.py: who asks again, when, and what each response is worth.

A trace mixes three ways of asking, over `days` of virtual time:

- Once: the response is never asked for again. These are `once` of all requests.
- In bursts: `bursts` of all requests. Half of these bursts are agents, which ask again after 2 minutes on average, 5
  times on average; half are questions about a document of the day, 8 times on average, 40 minutes apart on average.
- By popularity: the rest, Zipf's law with exponent 0.9 over 4,000 questions. Every hour, 2 % of them are replaced.

The rate of requests follows the day: at noon it is 9 times that of midnight.

A response is a chat of one of three models (120, 50 or 20 tokens a second, prefill of 20,000, 8,000 or 2,500 tokens a
second, each a third of the responses), or an embedding, for `embeddings` of all questions.

- Tokens of a chat: log-normal with median 250, sigma 1.1, from 20 to 2,000; of its prompt: median 600, sigma 1.2, from
  20 to 16,000. Seconds of generation: output / speed + prompt / prefill.
- Bytes of memory of a chat: 2,100 + 5.8 per token, the line through the measurements in docs/decisions/0008 (66, 500
  and 32,000 tokens: 10.1 bytes per token at 500). An embedding of 1,024 numbers as JSON: 25,000 bytes and 20 ms.
"""

import math
from bisect import bisect
from itertools import accumulate
from random import Random
from typing import Final, NamedTuple

HOUR: Final = 3600.0
DAY: Final = 86400.0

_QUESTIONS: Final = 4000
_ZIPF: Final = 0.9
_DRIFT: Final = 0.02  # of the questions, every hour
_MODELS: Final = ((120.0, 20_000.0), (50.0, 8_000.0), (20.0, 2_500.0))  # tokens a second: output, prompt
_AGENT: Final = (5.0, 120.0)  # requests, seconds between two of them, on average
_DOCUMENT: Final = (8.0, 2400.0)


class Response(NamedTuple):
    """`seconds` of generation and `size` in bytes of Redis' memory."""

    seconds: float
    size: int


class Trace(NamedTuple):
    """`requests`: instants in seconds, in order, with the index of the response asked for."""

    requests: list[tuple[float, int]]
    responses: list[Response]


class Mix(NamedTuple):
    """Shares of all requests (`once`, `bursts`), and of all questions (`embeddings`). See the module."""

    once: float = 0.5
    bursts: float = 0.2
    embeddings: float = 0.0


MIXES: Final = {
    "mixed": Mix(),
    "one-hit": Mix(once=0.7, bursts=0.15),
    "popular": Mix(once=0.3, bursts=0.2),
    "embeddings": Mix(embeddings=0.3),
}


def make_trace(mix: Mix, seed: int, requests: int = 60_000, days: float = 3.0) -> Trace:
    random = Random(seed)
    responses: list[Response] = []

    def new_response() -> int:
        responses.append(_draw_response(random, mix.embeddings))
        return len(responses) - 1

    weights = list(accumulate(1 / rank**_ZIPF for rank in range(1, _QUESTIONS + 1)))
    popular = [new_response() for _ in range(_QUESTIONS)]
    asked: list[tuple[float, int]] = []
    # Bursts are started as often as it takes until their requests are `bursts` of all.
    mean_burst = (_AGENT[0] + _DOCUMENT[0]) / 2
    starts = requests * (mix.once + (1 - mix.once - mix.bursts) + mix.bursts / mean_burst)
    share_once, share_burst = requests * mix.once / starts, requests * mix.bursts / mean_burst / starts
    end, hour = days * DAY, 0
    for at in _arrivals(random, round(starts), end):
        while hour < at // HOUR:
            hour += 1
            for _ in range(round(_DRIFT * _QUESTIONS)):
                popular[random.randrange(_QUESTIONS)] = new_response()
        kind = random.random()
        if kind < share_once:
            asked.append((at, new_response()))
        elif kind < share_once + share_burst:
            asked += _burst(random, at, end, new_response())
        else:
            asked.append((at, popular[bisect(weights, random.random() * weights[-1])]))
    asked.sort()
    return Trace(asked, responses)


def _arrivals(random: Random, count: int, end: float) -> list[float]:
    """Instants at a rate that follows the day, from a tenth of the highest rate to all of it."""
    instants: list[float] = []
    while len(instants) < count:
        at = random.random() * end
        if random.random() < 0.55 - 0.44 * math.cos(2 * math.pi * at / DAY):
            instants.append(at)
    return sorted(instants)


def _burst(random: Random, at: float, end: float, response: int) -> list[tuple[float, int]]:
    count, gap = _AGENT if random.random() < 0.5 else _DOCUMENT
    burst = [(at, response)]
    while random.random() > 1 / count:  # geometric
        at += random.expovariate(1 / gap)
        if at >= end:
            break
        burst.append((at, response))
    return burst


def _draw_response(random: Random, embeddings: float) -> Response:
    if random.random() < embeddings:
        return Response(0.02, 25_000)
    speed, prefill = random.choice(_MODELS)
    output = _log_normal(random, 250, 1.1, 20, 2000)
    prompt = _log_normal(random, 600, 1.2, 20, 16_000)
    return Response(output / speed + prompt / prefill, round(2100 + 5.8 * output))


def _log_normal(random: Random, median: float, sigma: float, low: float, high: float) -> float:
    return min(high, max(low, random.lognormvariate(math.log(median), sigma)))
