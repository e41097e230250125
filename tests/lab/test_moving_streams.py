"""The study of streams that move: how it reads a stream, and when it decides to move it."""

import json
from typing import Any

import httpx

from lab.moving_streams import Stream, Study, table

CODE = "Write a Python function that sorts a list of numbers"


def events(ids: list[int], per_step: int) -> bytes:
    parts = [{"choices": [{"token_ids": None}], "prompt_token_ids": [1, 2, 3]}]
    parts += [{"choices": [{"token_ids": ids[at : at + per_step]}]} for at in range(0, len(ids), per_step)]
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts) + b"data: [DONE]\n\n"


class Engines:
    """Answers of 80 tokens. `per_step`: the tokens of a step, by engine."""

    def __init__(self, **per_step: int) -> None:
        self.per_step = per_step
        self.continued: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        name, body = request.url.host, json.loads(request.content)
        if request.url.path == "/v1/completions":
            self.continued.append((name, body))
        return httpx.Response(200, content=events(list(range(body["max_tokens"])), self.per_step[name]))


def test_a_stream_whose_draft_yields_what_is_expected_of_it_stays() -> None:
    engines = Engines(chat=4, code=4)
    with httpx.Client(transport=httpx.MockTransport(engines)) as http:
        study = Study(http, {name: f"http://{name}" for name in engines.per_step}, max_tokens=80)
        for _ in range(6):
            study.ask(CODE)
        assert not any(each.moved for each in study.outcomes)
        assert not engines.continued
        for outcome in study.outcomes:
            assert (outcome.stays.tokens_per_step, len(outcome.stays.steps)) == (4.0, 20)


def test_a_part_of_a_stream_ends_with_the_step_that_reaches_its_tokens() -> None:
    whole = Stream([1], list(range(12)), [(0.1, 1), (0.2, 4), (0.3, 4), (0.4, 3)])
    part = whole.up_to(5)
    assert (part.ids, part.seconds) == (list(range(5)), 0.2)
    assert whole.up_to(100) == whole


def test_the_table_says_how_many_moved() -> None:
    assert table([]).endswith("0 of 0 moved, 0 of them were sooner at their end")
