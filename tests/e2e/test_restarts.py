"""Real vLLM engines that are killed: `roundhouse up` starts them again, and meanwhile nothing is lost."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree

pytestmark = [pytest.mark.vllm, pytest.mark.real]

CHAT = "Tell me a story about the sea and an old lighthouse."
WAKE_TIMEOUT = 900
"""Seconds; the configuration lets a request wait for as long."""

AT_ONCE = 8


def body(prompt: str, *, model: str = "llama", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 48, **more}


def ask(tree: VllmProcessTree, request: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{tree.url}/v1/chat/completions", json=request, timeout=WAKE_TIMEOUT)


def test_a_request_for_a_model_whose_only_engine_is_gone_waits_for_its_start(tree: VllmProcessTree) -> None:
    before, killed = ask(tree, body(CHAT, model="mistral")), tree.pid("mistral")
    tree.kill("mistral")
    woken = ask(tree, body(f"{CHAT} Once more.", model="mistral"))
    assert (woken.status_code, woken.headers["x-engine"]) == (200, "mistral"), woken.text
    assert tree.pid("mistral") != killed
    page = httpx.get(f"{tree.url}/metrics").text
    assert 'llm_engine_wakes_total{model="mistral",result="started"} 1.0' in page
    assert tree.metric("mistral", "vllm:spec_decode_num_accepted_tokens_total") > 0, "it drafts as before"
    again = ask(tree, body(CHAT, model="mistral"))
    assert (again.headers["x-cache"], again.text.partition(',"metrics":')[0]) == (
        "HIT", before.text.partition(',"metrics":')[0]
    )  # fmt: skip


def test_an_engine_that_was_killed_gets_requests_again(tree: VllmProcessTree) -> None:
    if not tree.kills["one"] + tree.kills["two"]:  # without test_continuations
        tree.kill("one")
    replicas = tree.up("one", "two")
    used = set[str]()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for round_ in range(20):  # on a machine that pauses, one may be answered before the next is sent
            requests = [body(f"{round_}, {number}: {CHAT}", model="tiny") for number in range(AT_ONCE)]
            for answer in threads.map(partial(ask, replicas), requests):
                assert answer.status_code == 200, answer.text
                used.add(answer.headers["x-engine"])
            if used == replicas.ports.keys():
                return
    pytest.fail(f"only {used} got requests")


def frames(response: httpx.Response) -> Iterator[str]:
    rest = ""
    for piece in response.iter_text():
        *complete, rest = (rest + piece).split("\n\n")
        yield from complete
    assert rest == ""


@pytest.mark.vllm_all
def test_another_engine_goes_on_with_the_stream_of_one_that_is_killed_and_the_others_serve(
    tree: VllmProcessTree,
) -> None:
    stored = body(CHAT, seed=3)
    assert ask(tree, stored).status_code == 200
    request = body("Go on for as long as you can.", max_tokens=3000, ignore_eos=True, stream=True)
    seen = []
    with httpx.stream("POST", f"{tree.url}/v1/chat/completions", json=request, timeout=120) as response:
        assert response.headers["x-engine"] == "llama-chat"
        for frame in frames(response):
            seen.append(frame)
            if len(seen) == 5:
                tree.kill("llama-chat")
    assert len(seen) > 5
    assert seen[-1] == "data: [DONE]"
    assert not any('"error"' in frame for frame in seen)
    assert sum('"finish_reason":"length"' in frame for frame in seen) == 1

    other = ask(tree, body(f"{CHAT} Once more.", model="mistral"))
    assert (other.status_code, other.headers["x-engine"]) == (200, "mistral")
    # The model's other engine takes over the requests of the dead one.
    instead = ask(tree, body(f"{CHAT} And again."))
    assert (instead.status_code, instead.headers["x-engine"]) == (200, "llama-code")
    assert ask(tree, stored).headers["x-cache"] == "HIT"
    tree.up("llama-chat")
