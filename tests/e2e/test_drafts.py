"""With real vLLM: the router's choice of engine yields more tokens per step than either draft alone."""

import pytest

from benchmarks.draft_prompts import mixed_load
from benchmarks.drafts import run, summarize, table
from benchmarks.small_engines import MODEL, SERVED
from tests.e2e.vllm_process_tree import VllmProcessTree

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

REQUESTS = 60


def test_the_router_beats_the_better_single_draft_and_comes_close_to_hindsight(tree: VllmProcessTree) -> None:
    urls = {name: f"http://127.0.0.1:{tree.ports[name]}" for name in ("llama-chat", "llama-code")}
    learned_from = [prompt for _, prompt in mixed_load(REQUESTS, seed=2)]
    measured = run(tree.url, urls, MODEL, SERVED, mixed_load(REQUESTS, seed=1), warm_up=learned_from)
    rows = summarize(measured)
    print(table(rows, {"code": 24, "chat": 24, "mathematics": 12, "all": REQUESTS}))  # noqa: T201 - for pytest -rP
    found = {way: {kind: one.tokens_per_step for kind, one in row.items()} for way, row in rows.items()}
    assert found["llama-code alone"]["code"] > found["llama-chat alone"]["code"]
    assert found["llama-chat alone"]["chat"] > found["llama-code alone"]["chat"]
    better = max(found["llama-chat alone"]["all"], found["llama-code alone"]["all"])
    assert found["router"]["all"] >= 1.1 * better
    assert found["router"]["all"] >= 0.93 * found["hindsight"]["all"]
