"""The chaos notices what it is there to notice."""

import json
from dataclasses import replace
from typing import Any

import pytest
from aftermath import flaws
from judging import Reply, Verdict, judge
from questions import WISHES, Asking, Origin, Question, expected_key
from sse_answers import DONE

MINE = Origin("globex", Question(8), WISHES["none"], 41)
KEPT = replace(MINE, serial=40)
ASKING = Asking(MINE, router=0, stream=False, usage=False, leaves=None)
STREAMING = replace(ASKING, stream=True)


def answer(origin: Origin, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": origin.question.text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 9}
    return {"id": f"chatcmpl-{origin.request_id()}", "choices": [choice], "usage": usage, **fields}


def events(origin: Origin, *, finish: str | None = "stop") -> list[bytes]:
    text, said = origin.question.text, []
    for part, reason in ((text[:9], None), (text[9:], finish)):
        choice = {"index": 0, "delta": {"content": part}, "finish_reason": reason}
        event = {"id": f"chatcmpl-{origin.request_id()}", "choices": [choice]}
        said.append(b"data: %b\n\n" % json.dumps(event).encode())
    return said


def headers(cache: str, **others: str) -> dict[str, str]:
    known = {"x-request-id": MINE.request_id(), "x-cache": cache, "age": "1"}
    key = {} if cache == "BYPASS" else {"x-cache-key": expected_key(MINE.tenant, MINE.question).text}
    return {**known, **key, **{name.replace("_", "-"): value for name, value in others.items()}}


def judged(origin: Origin, cache: str = "HIT", **others: str) -> list[str]:
    return judge(ASKING, Reply(200, headers(cache, **others), json.dumps(answer(origin)).encode(), whole=True)).defects


def streamed(*frames: bytes, whole: bool = True, cache: str = "MISS") -> Verdict:
    return judge(STREAMING, Reply(200, headers(cache), b"".join(frames), whole=whole))


def test_ones_own_answer_is_well() -> None:
    assert judged(MINE, "MISS") == judged(KEPT) == judged(KEPT, "STALE", age="36") == []
    assert streamed(*events(MINE), DONE) == Verdict("complete", "MISS", [])
    assert streamed(*events(KEPT), DONE, cache="HIT") == Verdict("complete", "HIT", [])


@pytest.mark.parametrize(
    ("origin", "cache", "others"),
    [
        (replace(KEPT, tenant="acme"), "HIT", {}),
        (replace(KEPT, question=Question(9)), "HIT", {}),
        (replace(KEPT, wish=WISHES["no-store"]), "COALESCED", {}),
        (replace(KEPT, wish=WISHES["ttl0"]), "HIT", {}),
        (replace(KEPT, wish=WISHES["ttl1"]), "HIT", {"age": "2"}),
        (KEPT, "MISS", {}),
        (KEPT, "HIT", {"age": "7"}),
        (KEPT, "STALE", {"age": "37"}),
        (KEPT, "HIT", {"x_cache_key": "rh:1:acme:llama:0:0:0"}),
        (KEPT, "HIT", {"x_request_id": KEPT.request_id()}),
        (KEPT, "NONE", {}),
    ],
)
def test_an_answer_that_is_none_for_this_request_is_noticed(origin: Origin, cache: str, others: dict[str, str]) -> None:
    assert judged(origin, cache, **others) != []


ERROR = b'data: {"error": {"message": "no", "type": "t", "param": null, "code": "c"}}\n\n'
FIRST, LAST = events(MINE)


def test_a_stream_may_end_with_an_error_and_may_be_cut() -> None:
    assert streamed(FIRST, ERROR) == Verdict("broken", "MISS", [])
    assert streamed(FIRST, LAST[:20], whole=False) == Verdict("cut", "MISS", [])


@pytest.mark.parametrize(
    "frames",
    [
        (), (FIRST,), (FIRST, LAST), (FIRST, DONE), (LAST, DONE), (FIRST, LAST[:20]), (FIRST, ERROR, DONE),
        (LAST, ERROR), (FIRST, events(KEPT)[1], DONE), (FIRST, FIRST, LAST, DONE), (FIRST, LAST, DONE, DONE),
    ],
)  # fmt: skip
def test_a_stream_that_ends_otherwise_is_noticed(frames: tuple[bytes, ...]) -> None:
    assert streamed(*frames).defects != []


def test_errors_have_a_shape_and_a_status_that_somebody_caused() -> None:
    def error(status: int, **fields: Any) -> Verdict:
        said = {"message": "no", "type": "t", "param": None, "code": "c", **fields}
        return judge(ASKING, Reply(status, headers("MISS"), json.dumps({"error": said}).encode(), whole=True))

    assert error(502) == Verdict("502 c", None, [])
    for bad in (error(500), error(404), error(503), error(502, message=""), error(502, more=1)):
        assert len(bad.defects) == 1


def entry(origin: Origin = KEPT, **fields: bytes) -> dict[bytes, bytes]:
    key = expected_key(origin.tenant, origin.question)
    whole = {
        "digest": key.digest.encode(), "model": b"llama", "engine": b"llama-chat", "task": b"chat", "created": b"1.5",
        "ttl": b"6.0", "prompt_tokens": b"3", "completion_tokens": b"9", "generation_ms": b"7", "question": b"0",
        "params": b"0", "frames": b"".join(events(origin)),
        "usage_frame": b'data: {"usage": {"prompt_tokens": 3}}\n\n', **fields,
    }  # fmt: skip
    return {name.encode(): value for name, value in whole.items()}


def json_entry(**fields: Any) -> dict[bytes, bytes]:
    whole = {name: value for name, value in entry().items() if name not in (b"frames", b"usage_frame")}
    return {**whole, b"body": json.dumps(answer(KEPT, **fields)).encode()}


def test_a_whole_entry_is_well() -> None:
    for whole in (entry(), json_entry()):
        assert flaws(expected_key(KEPT.tenant, KEPT.question).text, whole, left=36_000) == []


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        (entry(), 36_001),
        (entry(digest=b"0" * 64), 1),
        (entry(ttl=b"600.0"), 1),
        (entry(frames=events(KEPT)[0]), 1),
        (entry(frames=b"".join(events(KEPT))[:-1]), 1),
        (entry(frames=b"".join(events(KEPT, finish=None))), 1),
        (entry(frames=b"".join([*events(KEPT)[:1], *events(MINE)[1:]])), 1),
        ({**json_entry(), b"body": json_entry()[b"body"][:-9]}, 1),
        (json_entry(choices=[]), 1),
        ({**json_entry(), **entry()}, 1),
        (entry(replace(KEPT, tenant="acme")), 1),
        (entry(replace(KEPT, wish=WISHES["no-store"])), 1),
        ({name: value for name, value in entry().items() if name != b"params"}, 1),
    ],
)
def test_an_entry_that_is_not_whole_or_not_due_is_noticed(fields: dict[bytes, bytes], left: int) -> None:
    assert flaws(expected_key(KEPT.tenant, KEPT.question).text, fields, left) != []
