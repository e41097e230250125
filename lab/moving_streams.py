"""Would a stream be sooner at its end if it moved to the engine with the other draft?

    .venv/bin/python -m lab.moving_streams --vllm-python .venv-vllm/bin/python --requests 80 [--prompts FILE.jsonl]

The prompt tells the kind of the answer only in part; what the first tokens of the answer say is certain. This study
starts the two small llama engines of engines/tiny/roundhouse.toml (`make models`) with vLLM on the CPU. Each prompt is
streamed from both engines, at temperature 0. A choice is made as the router makes it (DraftStats), from what earlier
prompts have shown of both. If after DECIDE_AFTER tokens the draft has yielded clearly less than was expected of it, and
the rest is expected to take less time at the other engine, the stream is continued there, by token ids, and timed.

`stays`: the chosen engine's stream. `moves`: the same up to the decision, and then the other engine's stream, with its
prefill. `hindsight`: for each prompt the faster of the two streams.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import httpx

from benchmarks.draft_prompts import mixed_load
from benchmarks.options import count, input_file
from benchmarks.small_engines import SERVED, running_engines
from router.core.routing.classify import Classifier
from router.core.routing.draft_models.answer_time import FamilyLoad
from router.core.routing.draft_models.counted_steps import SpeculationCounters
from router.core.routing.draft_models.draft_performance import MeasuredGeneration
from router.core.routing.draft_models.draft_stats import DraftStats
from router.core.routing.draft_models.score_bins import score_bin, task_of

DECIDE_AFTER: Final = 24
CLEARLY_LESS: Final = 0.8
"""Of the expected tokens per step; with more, a stream does not move."""

MAX_PROMPT: Final = 1500
"""Characters; the small models have a short context."""

MIN_REST: Final = 48
"""The tokens that a stream is expected to have before it at least; an answer's length is not known."""


@dataclass
class Stream:
    """One response. `steps`: the tokens of each step, and when they came, in seconds since the request."""

    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.steps[-1][0] if self.steps else 0.0

    @property
    def tokens_per_step(self) -> float:
        """Without the first step, which computes the prompt."""
        return (len(self.ids) - self.steps[0][1]) / max(1, len(self.steps) - 1) if self.steps else 1.0

    def up_to(self, tokens: int) -> "Stream":
        part = Stream(self.prompt_ids)
        for at, number in self.steps:
            if len(part.ids) >= tokens:
                break
            part.steps.append((at, number))
            part.ids = self.ids[: len(part.ids) + number]
        return part


@dataclass(frozen=True)
class Outcome:
    stays: Stream
    moves: Stream
    moved: bool
    hindsight: Stream


def stream(http: httpx.Client, url: str, body: dict[str, Any], path: str) -> Stream:
    found, started = Stream(), time.perf_counter()
    body = {**body, "model": SERVED, "temperature": 0, "stream": True, "return_token_ids": True}
    with http.stream("POST", f"{url}{path}", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                found.prompt_ids = choice.get("prompt_token_ids") or event.get("prompt_token_ids") or found.prompt_ids
                if ids := choice.get("token_ids"):
                    found.ids += ids
                    found.steps.append((time.perf_counter() - started, len(ids)))
    return found


class Study:
    """`outcomes` grow with each prompt, and so does what is known of the drafts."""

    def __init__(self, http: httpx.Client, engines: dict[str, str], max_tokens: int) -> None:
        self._http, self._engines, self._max_tokens = http, engines, max_tokens
        self._classifier = Classifier.load()
        self._stats = DraftStats()
        self._families = frozenset(engines)
        self.outcomes: list[Outcome] = []

    def ask(self, prompt: str) -> None:
        body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": self._max_tokens}
        streams = {name: stream(self._http, url, body, "/v1/chat/completions") for name, url in self._engines.items()}
        bin_, now = score_bin(self._classifier.log_odds(prompt)), time.monotonic()
        loads = [FamilyLoad(name, _distance(name, task_of(bin_)), True, 1.0) for name in streams]
        seconds = self._stats.answer_seconds(loads, bin_, 128.0, now, {})
        chosen = min(seconds, key=lambda name: seconds[name])
        other = next(name for name in streams if name != chosen)
        begun = streams[chosen].up_to(DECIDE_AFTER)
        moves = streams[chosen]
        moved = len(begun.ids) < len(moves.ids) and self._is_better_elsewhere(begun, chosen, other, bin_, now)
        if moved:
            rest = stream(self._http, self._engines[other], self._rest_of(begun), "/v1/completions")
            moves = Stream(begun.prompt_ids, begun.ids + rest.ids, list(begun.steps))
            moves.steps += [(begun.seconds + at, number) for at, number in rest.steps]
        hindsight = min(streams.values(), key=lambda each: each.seconds)
        self.outcomes.append(Outcome(streams[chosen], moves, moved, hindsight))
        for name, whole in streams.items():  # as if exploration had shown what each is worth
            self._learn(name, whole, bin_, now)

    def _rest_of(self, begun: Stream) -> dict[str, Any]:
        return {"prompt": begun.prompt_ids + begun.ids, "max_tokens": self._max_tokens - len(begun.ids)}

    def _is_better_elsewhere(self, begun: Stream, chosen: str, other: str, bin_: int, now: float) -> bool:
        """The answer is taken to be of the task at which the draft yields about what it has yielded."""
        here, elsewhere = (self._stats.tokens_per_step_by_bin(name, now) for name in (chosen, other))
        expected, seen = here.get(bin_), begun.tokens_per_step
        if expected is None or seen >= CLEARLY_LESS * expected:
            return False
        known = [at for at in here if at in elsewhere]
        closest = min(known, key=lambda at: abs(here[at] - seen), default=None)
        if closest is None:
            return False
        step = (begun.steps[-1][0] - begun.steps[0][0]) / max(1, len(begun.steps) - 1)
        first_token = begun.steps[0][0]
        rest = max(MIN_REST, 128 - len(begun.ids))
        return rest / elsewhere[closest] * step + first_token < rest / seen * step

    def _learn(self, name: str, done: Stream, bin_: int, now: float) -> None:
        steps = max(1, len(done.steps) - 1)
        tokens = len(done.ids) - 1
        if tokens < 1:
            return
        speculation = SpeculationCounters(steps, max(0, tokens - steps))
        self._stats.record_generation(
            MeasuredGeneration(
                engine=name, family=name, model="llama", rivals=self._families, bin_=bin_, tokens=tokens,
                seconds=done.seconds, speculation=speculation, has_draft=True,
            ),
            now,
        )  # fmt: skip


def _distance(name: str, task: str) -> int:
    return 0 if name.endswith(task) else 2


def table(outcomes: Sequence[Outcome]) -> str:
    rows = {
        "stays": [each.stays for each in outcomes],
        "moves": [each.moves for each in outcomes],
        "hindsight": [each.hindsight for each in outcomes],
    }
    moved = [each for each in outcomes if each.moved]
    lines = ["| | tokens per step | seconds of an answer | of those that moved |", "| --- | --- | --- | --- |"]
    for name, streams in rows.items():
        of_moved = [stream_ for stream_, each in zip(streams, outcomes, strict=True) if each.moved]
        per_step = sum(len(each.ids) for each in streams) / max(1, sum(len(each.steps) for each in streams))
        some = f"{fmean(each.seconds for each in of_moved):.3f}" if of_moved else "-"
        lines.append(f"| {name} | {per_step:.2f} | {fmean([each.seconds for each in streams] or [0.0]):.3f} | {some} |")
    sooner = sum(each.moves.seconds < each.stays.seconds for each in moved)
    return "\n".join([*lines, "", f"{len(moved)} of {len(outcomes)} moved, {sooner} of them were sooner at their end"])


def read_prompts(path: Path | None, requests: int) -> Iterator[str]:
    if path is None:
        yield from (prompt for _, prompt in mixed_load(requests, 1))
        return
    prompts = (json.loads(line)["prompt"] for line in path.read_text().splitlines())
    yield from islice((prompt for prompt in prompts if len(prompt) <= MAX_PROMPT), requests)


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.moving_streams", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--vllm-python", default=".venv-vllm/bin/python", help="of an environment with vLLM")
    add("--requests", type=count, default=80)
    add("--max-tokens", type=count, default=192)
    add("--prompts", type=input_file, metavar="FILE", help="JSON lines with a field `prompt`")
    options = parser.parse_args()
    with (
        running_engines(options.vllm_python, Path("engines/tiny/roundhouse.toml")) as (_, engines),
        httpx.Client(timeout=120, trust_env=False) as http,
    ):
        study = Study(http, engines, options.max_tokens)
        for prompt in read_prompts(options.prompts, options.requests):
            study.ask(prompt)
    print(table(study.outcomes))


if __name__ == "__main__":
    main()
