"""Which streams another engine continues, and how: the table of docs/resilience.md, row by row."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from tests.support.paths import ROOT
from tests.support.router_server import router_config
from tests.support.toy_model import PROMPT_IDS, ToyModel
from tests.support.toy_script import Break, ToyScript, toy_engines
from tests.support.typed_answers import MESSAGES, RESPONSES, TYPED_PATHS, typed_body
from tests.world.scenario import World, scenario
from tests.world.thinkers import Thinker

PAGE: Final = ROOT / "docs" / "resilience.md"
ANSWER: Final = "The sea is wide and blue."
PICTURE: Final = [
    {"type": "text", "text": "x"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
]
COUNTED: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
TOOLS: Final = [{"type": "function", "function": {"name": "f"}}]
SCHEMA: Final = {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}


class Case(NamedTuple):
    """A request, and its engines.

    `rest`: tables of the configuration. `cache`: settings of its table. Most others: see ToyScript, and for messages
    and responses Thinker.
    """

    fields: Mapping[str, Any] = MappingProxyType({})
    path: str = "/v1/chat/completions"
    kind: str = "vllm"
    groups: tuple[int, ...] = (1,)
    engines: int = 2
    rest: str = ""
    cache: str = ""
    model: str = ""
    second: str = ""
    knows_ids: bool = True
    deltas: tuple[str, ...] = ("content",)
    scaled_out: bool = False
    breaks_after: bytes = b""
    calls: bool = False
    summarizes: bool = False


COMPLETION: Final = "/v1/completions"
THOUGHT: Final = b"thought of"
MESSAGE: Final = Case(path=MESSAGES, breaks_after=THOUGHT)
RESPONSE: Final = Case(path=RESPONSES, breaks_after=THOUGHT)

CASES: Final[dict[str, list[Case]]] = {
    "chat of texts, temperature 0": [Case()],
    "chat of texts, another temperature": [Case({"temperature": 0.7}), Case({"temperature": None})],
    "completion of a text": [Case({"prompt": "x"}, COMPLETION), Case({"prompt": ["x"]}, COMPLETION)],
    "completion of token ids": [Case({"prompt": PROMPT_IDS}, COMPLETION)],
    "stop strings, temperature 0": [Case({"stop": ["q"]}), Case({"stop": "qqq"})],
    "several tokens in each event, temperature 0": [Case(groups=(2,))],
    "several tokens in each event, another temperature": [Case({"temperature": 0.7}, groups=(2,))],
    "chat with an image": [Case({"messages": [{"role": "user", "content": PICTURE}]})],
    "a field that the router does not know": [Case({"new_option": 1})],
    "chat without a limit, engines of SGLang, or of a vLLM without `return_token_ids`": [
        Case({"max_tokens": None}, kind="sglang"),
        Case({"max_tokens": None}, knows_ids=False),
    ],
    "`max_tokens` or `min_tokens`, these engines": [
        Case(kind="sglang"),
        Case(knows_ids=False),
        Case({"max_tokens": None, "min_tokens": 1}, kind="sglang"),
    ],
    "the same with `continuous_usage_stats`": [
        Case(kind="sglang", fields=COUNTED),
        Case(knows_ids=False, fields=COUNTED),
    ],
    "completion, engines of an unknown kind": [Case({"prompt": "x"}, COMPLETION, "someone")],
    "completion with `continuous_usage_stats`, engines of an unknown kind": [
        Case({"prompt": "x", **COUNTED}, COMPLETION, "someone"),
    ],
    "completion without a limit, engines of an unknown kind": [
        Case({"prompt": "x", "max_tokens": None, **COUNTED}, COMPLETION, "someone"),
    ],
    "completion without a limit, engines of llama.cpp": [
        Case({"prompt": "x", "max_tokens": None}, COMPLETION, "llamacpp"),
    ],
    "chat, engines of an unknown kind": [Case({"max_tokens": None}, kind="someone")],
    "stop strings, engines of another kind": [Case({"stop": ["q"], "max_tokens": None}, kind="sglang")],
    "stop strings with `include_stop_str_in_output`": [Case({"stop": ["q"], "include_stop_str_in_output": True})],
    "stop strings with `min_tokens`": [Case({"stop": ["q"], "min_tokens": 1})],
    "tools, before a call": [
        Case({"tools": TOOLS}),
        Case({"tools": TOOLS, "tool_choice": "auto"}, deltas=("content",) * 20 + ("tool_calls",)),
        Case({"tools": TOOLS, "tool_choice": "none", "max_tokens": None}),
        Case({"tools": TOOLS, "max_tokens": None}, kind="sglang"),
    ],
    "tools, once a call has begun": [
        Case({"tools": TOOLS}, deltas=("content", "content", "tool_calls")),
        Case({"tools": TOOLS}, deltas=("tool_calls",)),
    ],
    "tools, text after reasoning": [Case({"tools": TOOLS}, deltas=("reasoning", "content"))],
    "a begun call, or text after reasoning, engines of vLLM with `--enable-scale-out`": [
        Case({"tools": TOOLS}, scaled_out=True, deltas=("content", "content", "tool_calls")),
        Case({"tools": TOOLS, "max_tokens": None}, scaled_out=True, deltas=("tool_calls",), groups=(2,)),
        Case({"tools": TOOLS, "temperature": 0.7}, scaled_out=True, deltas=("reasoning", "content")),
    ],
    '`tool_choice` "required" or a tool': [
        Case({"tools": TOOLS, "tool_choice": "required"}),
        Case({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ],
    "only reasoning so far": [
        Case(deltas=("reasoning",)),
        Case({"temperature": 0.7, "max_tokens": None}, deltas=("reasoning_content",)),
        Case(kind="someone", deltas=("reasoning",)),
    ],
    "only reasoning so far, with tools, a schema or log probabilities": [
        Case({"tools": TOOLS}, deltas=("reasoning",)),
        Case({"tools": TOOLS, "tool_choice": "required"}, deltas=("reasoning",)),
        Case({"response_format": SCHEMA}, deltas=("reasoning",)),
        Case({"logprobs": True}, deltas=("reasoning",)),
    ],
    "only reasoning so far, several choices": [Case({"n": 2}, deltas=("reasoning",))],
    "message or response, only reasoning so far": [
        MESSAGE,
        MESSAGE._replace(breaks_after=b"content_block_stop"),
        RESPONSE,
        RESPONSE._replace(breaks_after=b"output_item.done"),
    ],
    "message or response, only reasoning so far, with tools or a schema, any kind of engine": [
        MESSAGE._replace(fields={"tools": [{"name": "look", "input_schema": {}}]}, kind="someone"),
        RESPONSE._replace(fields={"tools": [{"type": "function", "name": "look"}]}, kind="sglang"),
        RESPONSE._replace(fields={"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}),
    ],
    "message or response, text has begun (also if only the last event is missing)": [
        MESSAGE._replace(breaks_after=b'"text"'),
        MESSAGE._replace(breaks_after=b"I look."),
        MESSAGE._replace(breaks_after=b"message_delta"),
        RESPONSE._replace(breaks_after=b'"message"'),
        RESPONSE._replace(breaks_after=b"I look."),
        RESPONSE._replace(breaks_after=b'"content":[{"type":"output_text"'),
    ],
    "message or response, a call has begun (the same)": [
        MESSAGE._replace(breaks_after=b"tool_use", calls=True),
        MESSAGE._replace(breaks_after=b"message_delta", calls=True),
        RESPONSE._replace(breaks_after=b"function_call", calls=True),
        RESPONSE._replace(breaks_after=b"function_call_arguments.done", calls=True),
    ],
    "response with a summary of its reasoning": [RESPONSE._replace(summarizes=True)],
    "a schema, a regex or a grammar": [
        Case({"response_format": SCHEMA}),
        Case({"structured_outputs": {"regex": "a"}}),
        Case({"guided_grammar": "root ::= a"}),
        Case({"regex": "a", "max_tokens": None}, kind="sglang"),
        Case({"prompt": "x", "grammar": "root ::= a"}, COMPLETION, "llamacpp"),
    ],
    "several choices": [Case({"n": 2}), Case({"prompt": ["x", "y"]}, COMPLETION)],
    "beam search": [Case({"use_beam_search": True})],
    "log probabilities": [Case({"logprobs": True}), Case({"prompt": "x", "logprobs": 0}, COMPLETION)],
    "`return_token_ids` of the client": [Case({"return_token_ids": True})],
    "`echo`, `suffix` or `truncate_prompt_tokens`": [
        Case({"prompt": "x", "echo": True}, COMPLETION),
        Case({"prompt": "x", "suffix": "y"}, COMPLETION),
        Case({"truncate_prompt_tokens": 9}),
    ],
    "audio as output": [Case({"modalities": ["text", "audio"]})],
    "reasoning that is hidden (`include_reasoning` false)": [Case({"include_reasoning": False})],
    "longer than `cache.max_entry`": [
        case._replace(cache='max_entry = "20B"') for case in (Case(), Case(deltas=("reasoning",)), MESSAGE, RESPONSE)
    ],
    "no other engine of the model": [case._replace(engines=1) for case in (Case(), MESSAGE, RESPONSE)],
    "engines of another revision": [
        Case(second='share = 0\nrevision = "2"'),  # not in the plan
        Case({"max_tokens": 99}, second='share = 1\nrevision = "2"'),  # in the plan, after the other
    ],
    "`resume = false` at the model": [case._replace(model="resume = false") for case in (Case(), MESSAGE, RESPONSE)],
    "`continuations = 0`": [case._replace(rest="[retry]\ncontinuations = 0") for case in (Case(), MESSAGE, RESPONSE)],
}
"""The requests of each row."""


ENDS: Final = {
    MESSAGES: (b"event: message_stop", b"event: error"),
    RESPONSES: (b"event: response.completed", b"event: response.failed"),
}
"""The end of a stream that is complete, and of one that is not."""


def table() -> dict[str, str]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows: dict[str, str] = {}
    for line in lines[lines.index("| request | goes on |") + 2 :]:
        if not line.startswith("|"):
            break
        request, outcome = (cell.strip() for cell in line.strip("|").split("|"))
        rows[request] = outcome
    return rows


def test_the_table_has_every_request_once() -> None:
    assert list(table()) == list(CASES)


@pytest.mark.parametrize("row", CASES)
@scenario
async def test_a_stream_goes_on_as_the_table_says(world: World, row: str) -> None:
    for case in CASES[row]:
        assert await outcome(world, case) == table()[row], case


async def outcome(world: World, case: Case) -> str:
    first, second = make_engines(case)
    async with toy_engines(*[first, second][: case.engines]) as engines:
        text = router_config(world.redis.url, engines, rest=case.rest, cache=case.cache)
        text = text.replace('name = "llama"\n', f'name = "llama"\n{case.model}\n')
        if case.second:
            text = text.replace('name = "b"\n', f'name = "b"\n{case.second}\n')
        router = await world.router(text)
        answer = await router.post(case.path, make_body(case))
        metrics = await router.metrics()
        await router.stop()
    assert case.kind == "vllm" or not any("return_token_ids" in each for each in first.bodies + second.bodies)
    results = [
        name.partition('result="')[2].partition('"')[0]
        for name, value in metrics.items()
        if name.startswith("llm_continuations_total{") and value
    ]
    whole, broken = (answer.content.count(end) for end in ENDS.get(case.path, (b"data: [DONE]\n\n", b'"error"')))
    if results != ["continued"]:
        assert (whole, broken, second.bodies) == (0, 1, []), case
        return "no" + "".join(f" (`{result}`)" for result in results)
    assert (whole, broken) == (1, 0), case
    if second.bodies == first.bodies:
        return "anew"
    return "by token ids" if isinstance(second.bodies[0].get("prompt"), list) else "by text"


def make_engines(case: Case) -> tuple[ToyScript, ToyScript] | tuple[Thinker, Thinker]:
    """The first one breaks the stream off."""
    if case.path in TYPED_PATHS:
        says: Any = {"kind": case.kind, "calls": case.calls, "summarizes": case.summarizes}
        return Thinker("a", case.breaks_after, **says), Thinker("b", **says)
    options: Any = {
        "groups": list(case.groups), "kind": case.kind, "knows_ids": case.knows_ids, "deltas": case.deltas,
        "scaled_out": case.scaled_out,
    }  # fmt: skip
    model = ToyModel(ANSWER, [1])
    return ToyScript(model, Break(1500), name="a", **options), ToyScript(model, name="b", **options)


def make_body(case: Case) -> dict[str, Any]:
    if case.path in TYPED_PATHS:
        return typed_body(case.path, "x", stream=True, **case.fields)
    body: dict[str, Any] = {"model": "llama", "stream": True, "temperature": 0, "max_tokens": 100}
    if case.path != COMPLETION:
        body["messages"] = [{"role": "user", "content": "x"}]
    return {**body, **case.fields}
