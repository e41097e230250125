"""The effect of engine selection on speculative decoding: the tokens per step of each draft alone, and of the router.

    .venv/bin/python -m benchmarks.drafts    # starts two small vLLM engines and a router
    .venv/bin/python -m benchmarks.drafts --router http://127.0.0.1:8080 --model llama --served NAME \\
        --engine llama-chat=http://127.0.0.1:8001 --engine llama-code=http://127.0.0.1:8002

The load: distinct prompts for code, chat and mathematics in a shuffled order (draft_prompts.py), one at a time, at
temperature 0. Each prompt goes to every engine directly, and once through the router, past its cache. *hindsight* takes
for each prompt the engine that needed the fewest steps. The tokens per step are 1 + accepted draft tokens / steps, from
the differences of vLLM's counters (`vllm:spec_decode_num_drafts_total` and others). Nothing is timed. No other client
may use the engines during the measurement.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

import httpx

from benchmarks.draft_prompts import Kind, mixed_load
from benchmarks.small_engines import MODEL, SERVED, running_engines

_MAX_TOKENS = 64
_FINISHED = "vllm:request_success_total"
_STEPS = "vllm:spec_decode_num_drafts_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_COUNTERS_TIMEOUT_S = 10.0
_WARM_UP_SEED = 1_000_000  # added to the seed: the warm-up has prompts of its own, as far as there are enough


@dataclass(frozen=True)
class Decoding:
    """Steps with draft tokens, and accepted draft tokens, in total and by position."""

    steps: int = 0
    accepted: int = 0
    per_position: tuple[int, ...] = ()

    @property
    def tokens_per_step(self) -> float:
        """1 without any step: each step yields a token of the target's own."""
        return 1 + self.accepted / self.steps if self.steps else 1.0


@dataclass(frozen=True)
class Measured:
    """One prompt: how each engine decoded its answer, and how the engine that the router chose did."""

    kind: Kind
    prompt: str
    fixed: Mapping[str, Decoding]
    routed: Decoding
    chosen: str

    @property
    def hindsight(self) -> Decoding:
        return max(self.fixed.values(), key=lambda decoding: decoding.tokens_per_step)


def total(decodings: Iterable[Decoding]) -> Decoding:
    summed = list(decodings)
    positions = zip_longest(*(one.per_position for one in summed), fillvalue=0)
    return Decoding(sum(one.steps for one in summed), sum(one.accepted for one in summed), tuple(map(sum, positions)))


def summarize(measured: Sequence[Measured]) -> dict[str, dict[str, Decoding]]:
    """A row for each way to choose an engine, a column for each kind of prompt and for all."""
    ways: dict[str, Callable[[Measured], Decoding]] = {
        f"{name} alone": lambda one, name=name: one.fixed[name]  # type: ignore[misc]
        for name in (measured[0].fixed if measured else ())
    }
    ways |= {"router": lambda one: one.routed, "hindsight": lambda one: one.hindsight}
    kinds = dict.fromkeys(one.kind for one in measured)
    return {
        way: {kind: total(pick(one) for one in measured if one.kind == kind) for kind in kinds}
        | {"all": total(map(pick, measured))}
        for way, pick in ways.items()
    }


Counters = Counter[tuple[str, int]]
"""Values by the counter's name and the position of a draft token, 0 if the counter has none."""


def parse_counters(page: str) -> Counters:
    """The counters on a metrics page, summed over their other labels."""
    counters: Counters = Counter()
    for line in page.splitlines():
        name, _, labels = line.partition("{")
        if name in (_FINISHED, _STEPS, _ACCEPTED, _PER_POSITION):
            position = labels.partition('position="')[2].partition('"')[0]
            counters[name, int(position or 0)] += int(float(line.rpartition(" ")[2]))
    return counters


def decoding_between(before: Counters, after: Counters) -> Decoding:
    positions = sorted(position for name, position in after if name == _PER_POSITION)
    return Decoding(
        after[_STEPS, 0] - before[_STEPS, 0],
        after[_ACCEPTED, 0] - before[_ACCEPTED, 0],
        tuple(after[_PER_POSITION, at] - before[_PER_POSITION, at] for at in positions),
    )


def measure(http: httpx.Client, engines: Iterable[str], send: Callable[[], str]) -> tuple[Decoding, str]:
    """What the engines at these addresses did for one request, all together, and what `send` returns."""
    before = read_counters(http, engines)
    sent = send()
    deadline = time.monotonic() + _COUNTERS_TIMEOUT_S
    while time.monotonic() < deadline:
        after = read_counters(http, engines)
        if after[_FINISHED, 0] > before[_FINISHED, 0]:
            return decoding_between(before, after), sent
        time.sleep(0.01)  # vLLM may count just after it has answered
    raise TimeoutError("no engine counted a finished request: are all engines of the model named?")


def read_counters(http: httpx.Client, engines: Iterable[str]) -> Counters:
    """The counters of all engines together."""
    pages = (http.get(f"{engine}/metrics").raise_for_status().text for engine in engines)
    return sum(map(parse_counters, pages), Counter())


def ask(http: httpx.Client, url: str, model: str, prompt: str) -> str:
    """Sends one prompt past the router's cache; returns the name of the engine that the router chose, or ""."""
    body = {
        "model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": _MAX_TOKENS, "temperature": 0
    }  # fmt: skip
    answer = http.post(f"{url}/v1/chat/completions", json=body, headers={"cache-control": "no-store"})
    name: str = answer.raise_for_status().headers.get("x-engine", "")
    return name


def run(
    router: str,
    urls: Mapping[str, str],
    model: str,
    served: str,
    load: Sequence[tuple[Kind, str]],
    warm_up: Sequence[str],
) -> list[Measured]:
    """Sends the load to each engine and through the router. `served`: the engines' name for the router's `model`."""
    addresses = list(urls.values())
    with httpx.Client(timeout=120, trust_env=False, verify=False) as http:
        for prompt in warm_up:
            ask(http, router, model, prompt)

        def measured(url: str, name: str) -> list[tuple[Decoding, str]]:
            return [measure(http, addresses, partial(ask, http, url, name, prompt)) for _, prompt in load]

        routed = measured(router, model)
        fixed = {name: measured(url, served) for name, url in urls.items()}
    return [
        Measured(kind, prompt, {name: fixed[name][at][0] for name in urls}, *routed[at])
        for at, (kind, prompt) in enumerate(load)
    ]


def table(rows: Mapping[str, Mapping[str, Decoding]], counts: Mapping[str, int]) -> str:
    """The tokens per step of each row, then the share of the steps whose draft token was accepted at each position."""
    positions = max((len(columns["all"].per_position) for columns in rows.values()), default=0)
    head = [f"{kind} ({count})" for kind, count in counts.items()] + [f"position {at + 1}" for at in range(positions)]
    lines = ["| tokens per step | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for name, columns in rows.items():
        whole = columns["all"]
        cells = [f"{columns[kind].tokens_per_step:.2f}" for kind in counts]
        cells += [f"{accepted / whole.steps if whole.steps else 0:.0%}" for accepted in whole.per_position]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def as_json(rows: Mapping[str, Mapping[str, Decoding]], measured: Sequence[Measured]) -> str:
    result = {
        "tokens_per_step": {way: {kind: one.tokens_per_step for kind, one in row.items()} for way, row in rows.items()},
        "steps": {way: {kind: one.steps for kind, one in row.items()} for way, row in rows.items()},
        "accepted_per_position": {way: row["all"].per_position for way, row in rows.items()},
        "prompts": [
            {"kind": one.kind, "prompt": one.prompt, "chosen": one.chosen}
            | {"tokens_per_step": {name: decoding.tokens_per_step for name, decoding in one.fixed.items()}}
            for one in measured
        ],
    }
    return json.dumps(result, indent=1)


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    if options.router is not None and not options.engine:
        parser.error("--router needs each engine of the model as --engine NAME=URL")
    load = mixed_load(options.requests, options.seed)
    warm_up = [prompt for _, prompt in mixed_load(options.warm_up, options.seed + _WARM_UP_SEED)]
    with ExitStack() as stack:
        if options.router is None:
            router, urls = stack.enter_context(running_engines(options.vllm_python, options.config))
        else:
            router, urls = options.router, dict(options.engine)
        measured = run(router, urls, options.model, options.served or options.model, load, warm_up)
    rows = summarize(measured)
    counts = {kind: sum(kind in (one.kind, "all") for one in measured) for kind in rows["router"]}
    print(as_json(rows, measured) if options.json else table(rows, counts))


def _named_url(argument: str) -> tuple[str, str]:
    name, separator, url = argument.partition("=")
    if not name or not separator or not url:
        raise argparse.ArgumentTypeError(f"{argument!r} is not NAME=URL")
    return name, url


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--router", help="address of a running router; without it, one is started with two engines")
    parser.add_argument(
        "--engine", action="append", type=_named_url, default=[], metavar="NAME=URL", help="each engine of the model"
    )
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--served", default=SERVED, help="what the engines call the model")
    parser.add_argument("--requests", type=int, default=200, help="number of prompts")
    parser.add_argument("--warm-up", type=int, default=0, help="requests through the router before the measurement")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python", help="Python that vLLM is installed in")
    parser.add_argument(
        "--config", type=Path, default=Path("engines/tiny/roundhouse.toml"), help="configuration of the small engines"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser


if __name__ == "__main__":
    main()
