"""What the router believes of the prefix caches of real vLLM engines, beside what these report."""

import asyncio
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.ports import free_port
from tests.support.sse_answers import parse_events

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

PEOPLE, TURNS, SYSTEM_PROMPTS = 12, 8, 4
SYSTEM_WORDS, MESSAGE_WORDS = 330, 110
ANSWER_TOKENS = 24

# Tools first and calls as JSON, as the templates of Llama 3, Qwen and Hermes have them.
TEMPLATE = """
{{- bos_token }}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>' + (message['content'] or '') }}
{%- for call in message['tool_calls'] or [] %}{{ call['function'] | tojson }}{% endfor %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>' }}{% endif %}
"""

# 12 MB are 24,576 tokens, so the two caches do not hold all conversations, and prefixes are evicted.
ENGINE = """
[[engine]]
name = "{name}"
model = "llama"
url = "http://127.0.0.1:{port}"
max_model_len = 4096

[engine.launch]
target = "${{ROUNDHOUSE_MODELS:-.roundhouse/models}}/llama"
chat_template = "{template}"
args = [
    "--enforce-eager",
    "--max-num-seqs", "24",
    "--kv-cache-memory-bytes", "12M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "engines.tiny.worker_extension.SampleAsAsked",
    "--enable-auto-tool-choice",
    "--tool-call-parser", "step3",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = "." }}
"""

WORDS = (
    "river", "lamp", "seven", "harbour", "quiet", "engine", "paper", "north", "copper", "window", "grain", "signal",
    "morning", "letter", "garden", "silver", "market", "winter", "bridge", "stone", "captain", "island", "thunder",
)  # fmt: skip


class Reported(NamedTuple):
    """Of one request. `prompt`, `cached`: its tokens as vLLM reports them. `believed`: the share of the prompt that the
    router took for cached; None if it had no choice. `first_token`: in seconds.
    """

    prompt: int
    cached: int
    believed: float | None
    first_token: float


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    folder = tmp_path_factory.mktemp("replicas")
    template = folder / "template.jinja"
    template.write_text(TEMPLATE.replace("\n", ""))
    ports = {name: free_port() for name in ("one", "two")}
    text = '[cache]\nurl = "embedded"\n\n[[model]]\nname = "llama"\n'
    text += "".join(ENGINE.format(name=name, port=port, template=template) for name, port in ports.items())
    with running_tree(folder, text, ports) as tree:
        yield tree


def prose(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words)) + "."


def believed_share(headers: Mapping[str, str]) -> float | None:
    found = re.match(r"prefix ([0-9,]+) of ([0-9,]+);", headers.get("x-engine-reason", ""))
    held, of = (int(number.replace(",", "")) for number in found.groups()) if found is not None else (0, 0)
    return held / of if of else None


async def ask(http: httpx.AsyncClient, url: str, body: Mapping[str, Any]) -> tuple[Reported, str]:
    """Also the text of the answer."""
    started, first, stream = time.perf_counter(), None, b""
    options = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    async with http.stream("POST", f"{url}/v1/chat/completions", json={**options, **body}) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for data in answer.aiter_bytes():
            stream += data
            if first is None and b'"content":"' in data and b'"content":""' not in data:
                first = time.perf_counter() - started
    events = parse_events(stream)
    text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    usage = events[-1]["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Reported(usage["prompt_tokens"], cached, believed_share(answer.headers), first or 0.0), text


async def converse(
    http: httpx.AsyncClient, load: str, person: int, url_of: Callable[[int], str], body: Mapping[str, Any]
) -> list[Reported]:
    """All turns of one person; `url_of`: where each of them is sent."""
    system = prose(random.Random(f"{load} {person % SYSTEM_PROMPTS}"), SYSTEM_WORDS)
    rng = random.Random(f"{load} {person} of all")
    messages = [{"role": "system", "content": system}]
    reported = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": prose(rng, MESSAGE_WORDS)})
        one, text = await ask(http, url_of(turn), {**body, "messages": messages, "max_tokens": ANSWER_TOKENS})
        messages.append({"role": "assistant", "content": text})
        reported.append(one)
    return reported


async def converse_all(load: str, url_of: Callable[[int, int], str], body: Mapping[str, Any]) -> list[Reported]:
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=PEOPLE)) as http:
        conversations = await asyncio.gather(
            *(
                converse(http, load, person, lambda turn, person=person: url_of(person, turn), body)  # type: ignore[misc]
                for person in range(PEOPLE)
            )
        )
    return [one for conversation in conversations for one in conversation]


def cached_share(requests: Sequence[Reported]) -> float:
    return sum(one.cached for one in requests) / sum(one.prompt for one in requests)


def describe(name: str, requests: Sequence[Reported]) -> str:
    times = sorted(one.first_token for one in requests)
    mean, late = sum(times) / len(times), times[9 * len(times) // 10]
    return f"{name}: {cached_share(requests):.1%} cached, first token after {mean:.2f} s, p90 {late:.2f} s"


def counted_share(tree: VllmProcessTree, before: Mapping[str, float]) -> float:
    added = {kind: total - before[kind] for kind, total in counters(tree).items()}
    return added["hits"] / added["queries"]


def counters(tree: VllmProcessTree) -> dict[str, float]:
    return {
        kind: sum(tree.metric(engine, f"vllm:prefix_cache_{kind}_total") for engine in tree.ports)
        for kind in ("queries", "hits")
    }


def test_conversations_find_more_cached_than_with_round_robin_and_as_much_as_the_router_believes(
    replicas: VllmProcessTree,
) -> None:
    engines = [f"http://127.0.0.1:{port}" for port in replicas.ports.values()]
    before = counters(replicas)
    in_turn = asyncio.run(converse_all("a", lambda person, turn: engines[(person + turn) % 2], {"model": "llama"}))
    assert counted_share(replicas, before) == pytest.approx(cached_share(in_turn), abs=0.01)
    before = counters(replicas)
    routed = asyncio.run(converse_all("b", lambda _person, _turn: replicas.url, {"model": "llama"}))
    assert counted_share(replicas, before) == pytest.approx(cached_share(routed), abs=0.01)
    chosen = [one for one in routed if one.believed is not None]
    believed = sum(one.prompt * (one.believed or 0.0) for one in chosen) / sum(one.prompt for one in chosen)
    print(describe("round robin", in_turn))  # noqa: T201 - for pytest -rP
    print(describe("routed", routed), f"{believed:.1%} believed to be, of {len(chosen)} requests")  # noqa: T201
    assert cached_share(routed) > cached_share(in_turn) + 0.1
    assert len(chosen) > 0.9 * len(routed)
    assert believed == pytest.approx(cached_share(chosen), abs=0.05)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"look_up_{name}",
            "description": f"Looks up the {name} of a place. " * 6,
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
    for name in ("weather", "tide", "ferry")
]


def tool_turn(rng: random.Random, number: int) -> list[dict[str, Any]]:
    """A call of a tool, its result, and the next question."""
    arguments = json.dumps({"place": rng.choice(WORDS)})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "look_up_tide", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": prose(rng, 60)},
        {"role": "user", "content": prose(rng, 40)},
    ]


def test_the_turns_of_an_agent_with_tools_are_believed_to_be_cached_as_they_are(replicas: VllmProcessTree) -> None:
    async def turns() -> list[Reported]:
        rng, reported = random.Random("tools"), []
        messages = [{"role": "system", "content": prose(rng, 60)}, {"role": "user", "content": prose(rng, 40)}]
        async with httpx.AsyncClient(timeout=300) as http:
            for number in range(TURNS):
                body = {"model": "llama", "messages": messages, "tools": TOOLS, "max_tokens": 4}
                reported.append((await ask(http, replicas.url, body))[0])
                messages += tool_turn(rng, number)
        return reported

    compare_beliefs("agent", asyncio.run(turns()))


def test_prompts_of_token_ids_are_believed_to_be_cached_as_they_are(replicas: VllmProcessTree) -> None:
    rng, ids, reported = random.Random("ids"), [], []
    for _ in range(TURNS):
        ids += rng.choices(range(100, 1000), k=400)
        answer = httpx.post(
            f"{replicas.url}/v1/completions", timeout=300,
            json={"model": "llama", "prompt": ids, "max_tokens": 4, "temperature": 0},
        )  # fmt: skip
        usage = answer.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        reported.append(Reported(usage["prompt_tokens"], cached, believed_share(answer.headers), 0.0))
    compare_beliefs("token ids", reported)


def compare_beliefs(name: str, requests: Sequence[Reported]) -> None:
    rows = [(one.prompt, one.cached, round(one.prompt * (one.believed or 0.0))) for one in requests]
    print(f"{name} (prompt, cached, believed):", rows)  # noqa: T201 - for pytest -rP
    assert rows[0][1:] == (0, 0)
    for prompt, cached, believed in rows[1:]:
        # A piece of the chain has 1 KiB, and a block of vLLM's cache on a CPU has 128 tokens.
        assert believed == pytest.approx(cached, abs=128 + 256 + 0.03 * prompt)
