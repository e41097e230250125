"""What `roundhouse why` and the dashboard say about a request."""

from typing import Any

import pytest

from router.shared.status.request_explanation import explain
from router.shared.status.status_documents import AttemptRow
from tests.support.status_factory import request_row


def lines(**fields: Any) -> list[str]:
    return [f"{line.name} {line.text}" for line in explain(request_row(**fields)).words]


def test_a_slow_request_says_where_its_time_went() -> None:
    assert lines(
        path="/v1/chat/completions", key_id="0f786551", stream=True, notable=True, ms=31_250.0, ttft_ms=31_000.0,
        times={"lookup_ms": 0.41, "queue_ms": 30_020.0, "first_token_ms": 950.0, "engine_ms": 1190.0},
        attempts=(AttemptRow(engine="e1", result="ok"),),
    ) == [
        "asked /v1/chat/completions by tenant acme (key 0f786551), model llama, chat, a stream",
        "answered 200 after 31,250.0 ms, the first token after 31,000.0 ms by router process r1",
        "cache MISS, new: no similar request was known",
        "time 0.41 ms for the lookup in Redis",
        "time 30,020.00 ms in the router's queue, for a slot at an engine",
        "time 950.00 ms at the engine, until the first token",
        "time 1,190.00 ms at engines, all in all",
        "engines e1: ok",
        "next The engines of the model have no free slot: docs/runbooks.md, “Time to first token high”.",
    ]  # fmt: skip


def test_a_failed_request_says_what_each_engine_said() -> None:
    attempts = (
        AttemptRow(engine="e1", result="timeout", ms=30_000.4, message="no first token"),
        AttemptRow(engine="e2", result="status-500", ms=12.0),
    )
    said = lines(status=502, error="engine_failed", outcome="refused", ttft_ms=None, attempts=attempts, notable=True)
    assert said[1] == "answered 502 engine_failed after 379.1 ms by router process r1"
    assert said[3:5] == ["engines e1: timeout after 30,000 ms: no first token", "engines e2: status-500 after 12 ms"]
    assert said[-1].startswith("next The engines failed one after the other")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"cache": "HIT", "reason": None}, "HIT: served from the cache"),
        ({"reason": "purged"}, "MISS, purged: an entry existed, and a purge has deleted it"),
        (
            {"cache": "COALESCED", "reason": None, "shared_with": "r0"},
            "COALESCED: shared the generation of an equal request that was in progress (r0)",
        ),
        ({"cache": None, "reason": "requests_limit"}, "not looked up: the request was refused before"),
        ({"reason": "from a newer version"}, "MISS, from a newer version: from a newer version"),
    ],
)
def test_the_cache_is_in_words(fields: dict[str, Any], line: str) -> None:
    assert f"cache {line}" in lines(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": 429, "error": "requests_limit", "cache": None}, "A limit of the tenant"),
        ({"status": 429, "error": "tokens_per_day_budget", "cache": None}, "A budget of the tenant"),
        ({"attempts": (AttemptRow(engine="e", result="reset", ms=1.0),)}, "1 attempt failed"),
        ({"notable": True, "ms": 1000.0, "times": {"lookup_ms": 900.0}}, "Redis was slow"),
        (
            {"notable": True, "ms": 60_000.0, "times": {"lookup_ms": 0.3, "engine_ms": 59_990.0}},
            "The engine took that long to generate",
        ),
        (
            {"notable": True, "ms": 60_000.0, "times": {"first_token_ms": 50_000.0, "engine_ms": 59_990.0}},
            "The engine was slow to begin",
        ),
        (
            {"notable": True, "cache": "COALESCED", "ms": 4000.0, "times": {"lookup_ms": 0.3}},
            "Ask for the request that the other process answered",
        ),
        ({"notable": True, "ms": 4000.0, "times": {"lookup_ms": 0.3}}, "Compare it with what is stored"),
        ({}, "Compare it with what is stored: `roundhouse cache explain --id "),
    ],
)
def test_the_next_step_follows_from_the_cause(fields: dict[str, Any], words: str) -> None:
    assert lines(**fields)[-1].startswith(f"next {words}")


def test_a_hit_needs_no_next_step() -> None:
    assert not [line for line in lines(cache="HIT", reason=None) if line.startswith("next")]


def test_the_wait_for_another_process_is_told() -> None:
    said = lines(cache="COALESCED", reason=None, ms=3847.0, times={"lookup_ms": 0.5}, attempts=())
    assert "time 3,846.50 ms for an equal request that another process had begun" in said


@pytest.mark.parametrize(
    "fields", [{"status": 401, "error": "invalid_api_key"}, {"status": 503, "error": "keys_unknown"}]
)
def test_without_a_valid_key_no_tenant_is_named(fields: dict[str, Any]) -> None:
    assert lines(**fields, path="/v1/chat/completions")[0] == "asked /v1/chat/completions without a valid key"
