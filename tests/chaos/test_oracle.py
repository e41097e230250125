"""The chaos notices what it is there to notice: each judge is shown a history that violates it."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.simulator.tokens import split_tokens
from tests.chaos.generation_store import GenerationIndex, LoggedGeneration
from tests.chaos.oracle import ClientResponse, ResponseVerdict, check_response
from tests.chaos.workload import (
    CACHE_DIRECTIVES,
    MAX_TOKENS,
    ClientRequest,
    RequestOrigin,
    WorkloadQuestion,
    expected_key,
)
from tests.support.sse_answers import DONE_FRAME

MINE = RequestOrigin("globex", WorkloadQuestion(4), CACHE_DIRECTIVES["none"], 41)
KEPT = replace(MINE, serial=40)
ASKING = ClientRequest(MINE, router=0, stream=False, usage=False, leaves_after=None)
STREAMING = replace(ASKING, stream=True)
ENGINE = "llama-chat"


class Noted(GenerationIndex):
    """Generations that no engine has written down, each with a name that follows from its request."""

    def __init__(self, origins: Iterable[RequestOrigin]) -> None:
        super().__init__({})
        self._generations = {
            name_of(origin): LoggedGeneration(name_of(origin), ENGINE, 5.0, origin) for origin in origins
        }


def name_of(origin: RequestOrigin) -> str:
    return f"{origin.serial:012x}"


OTHERS = [
    replace(KEPT, tenant="acme", serial=1),
    replace(KEPT, question=WorkloadQuestion(5), serial=2),
    replace(KEPT, directive=CACHE_DIRECTIVES["no-store"], serial=3),
    replace(KEPT, directive=CACHE_DIRECTIVES["ttl0"], serial=4),
    replace(KEPT, directive=CACHE_DIRECTIVES["ttl1"], serial=5),
]


def noted() -> GenerationIndex:
    return Noted([MINE, KEPT, *OTHERS])


def text(origin: RequestOrigin) -> str:
    return origin.question.text(name_of(origin))


def answer(origin: RequestOrigin, said: str | None = None, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text(origin) if said is None else said}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 9}
    return {"id": name_of(origin), "object": "chat.completion", "choices": [choice], "usage": usage, **fields}


def events(origin: RequestOrigin, *, finish: str | None = "stop", at: int = 20) -> list[bytes]:
    frames = []
    for part, reason in ((text(origin)[:at], None), (text(origin)[at:], finish)):
        choice = {"index": 0, "delta": {"content": part}, "finish_reason": reason}
        event = {"id": name_of(origin), "object": "chat.completion.chunk", "choices": [choice]}
        frames.append(b"data: %b\n\n" % json.dumps(event).encode())
    return frames


def headers(cache: str, **others: str) -> dict[str, str]:
    known = {"x-request-id": MINE.request_id(), "x-cache": cache, "age": "1", "x-engine": ENGINE}
    key = {} if cache == "BYPASS" else {"x-cache-key": expected_key(MINE.tenant, MINE.question).text}
    return {**known, **key, **{name.replace("_", "-"): value for name, value in others.items()}}


def judged(origin: RequestOrigin, cache: str = "HIT", **others: str) -> list[str]:
    reply = ClientResponse(200, headers(cache, **others), json.dumps(answer(origin)).encode(), complete=True)
    return check_response(ASKING, reply, noted()).defects


def streamed(*frames: bytes, whole: bool = True, cache: str = "MISS") -> ResponseVerdict:
    return check_response(STREAMING, ClientResponse(200, headers(cache), b"".join(frames), complete=whole), noted())


def test_a_response_to_the_request_itself_is_valid() -> None:
    assert judged(MINE, "MISS") == judged(KEPT) == judged(KEPT, "STALE", age="3606") == []
    own, kept = streamed(*events(MINE), DONE_FRAME), streamed(*events(KEPT), DONE_FRAME, cache="HIT")
    assert (own.ending, own.defects) == (kept.ending, kept.defects) == ("complete", [])
    assert own.generation is not None
    assert own.generation.origin == MINE


@pytest.mark.parametrize(
    ("origin", "cache", "others"),
    [
        *[(origin, "HIT", {}) for origin in OTHERS[:4]],
        (OTHERS[2], "COALESCED", {}),
        (OTHERS[4], "HIT", {"age": "2"}),
        (KEPT, "MISS", {}),
        (KEPT, "HIT", {"age": "7"}),
        (KEPT, "STALE", {"age": "3607"}),
        (KEPT, "HIT", {"x_cache_key": "rh:1:acme:llama:0:0:0"}),
        (KEPT, "HIT", {"x_request_id": KEPT.request_id()}),
        (KEPT, "HIT", {"x_engine": "llama-code"}),
        (KEPT, "NONE", {}),
        (replace(KEPT, serial=99), "HIT", {}),
    ],
)
def test_a_response_to_another_request_is_reported(origin: RequestOrigin, cache: str, others: dict[str, str]) -> None:
    assert judged(origin, cache, **others) != []


@pytest.mark.parametrize(
    "said",
    [
        text(MINE)[:-1],
        text(MINE).replace(name_of(MINE), name_of(KEPT), 1),  # the begin of one generation, the rest of another
        text(MINE)[:20] + text(KEPT)[20:],
        f"and {text(MINE)}",
        "",
    ],
)
def test_a_text_that_is_not_exactly_one_generation_is_reported(said: str) -> None:
    reply = ClientResponse(200, headers("MISS"), json.dumps(answer(MINE, said)).encode(), complete=True)
    assert check_response(ASKING, reply, noted()).defects != []


def test_two_clients_that_get_one_generation_under_two_ids_are_reported() -> None:
    store, reply = noted(), ClientResponse(200, headers("MISS"), json.dumps(answer(MINE)).encode(), complete=True)
    assert check_response(ASKING, reply, store).defects == []
    other = json.dumps({**answer(MINE), "id": "another"}).encode()
    assert check_response(ASKING, reply._replace(body=other), store).defects != []


ERROR = b'data: {"error": {"message": "no", "type": "t", "param": null, "code": "c"}}\n\n'
FIRST, LAST = events(MINE)


def test_a_stream_may_end_with_an_error_and_may_be_cut_even_within_the_name_of_its_generation() -> None:
    assert streamed(FIRST, ERROR)[:3] == ("broken, c", "MISS", [])
    assert streamed(FIRST, LAST[:20], whole=False)[:3] == ("cut", "MISS", [])
    assert streamed(events(MINE, at=5)[0], whole=False) == ResponseVerdict("cut", "MISS", [], None)
    assert streamed(ERROR)[:3] == ("broken, c", "MISS", [])


@pytest.mark.parametrize(
    "frames",
    [
        (), (FIRST,), (FIRST, LAST), (FIRST, DONE_FRAME), (LAST, DONE_FRAME), (FIRST, LAST[:20]), (FIRST, ERROR,
        DONE_FRAME), (LAST, ERROR), (FIRST, events(KEPT)[1], DONE_FRAME), (FIRST, FIRST, LAST, DONE_FRAME), (FIRST,
    LAST, DONE_FRAME, DONE_FRAME), ],
)  # fmt: skip
def test_a_stream_that_ends_in_another_way_is_reported(frames: tuple[bytes, ...]) -> None:
    assert streamed(*frames).defects != []


def test_errors_have_a_known_shape_and_a_status_that_a_fault_explains() -> None:
    def error(status: int, tenant: str = MINE.tenant, **fields: Any) -> ResponseVerdict:
        said = {"message": "no", "type": "t", "param": None, "code": "c", **fields}
        asking = replace(ASKING, origin=replace(MINE, tenant=tenant))
        told = {**headers("MISS"), "x-request-id": asking.origin.request_id(), "retry-after": "1"}
        told = told if status in (429, 503) else headers("MISS")
        return check_response(
            asking, ClientResponse(status, told, json.dumps({"error": said}).encode(), complete=True), noted()
        )

    assert error(502) == ResponseVerdict("502 c", None, [])
    assert error(429, "hooli", code="rate_limit_exceeded", type="requests").defects == []
    assert error(429, code="tenant_queue_full").defects == []
    refused = error(429, code="rate_limit_exceeded", type="requests")
    for bad in (error(500), error(404), error(502, message=""), error(502, more=1), refused):
        assert len(bad.defects) == 1
    said = {"message": "no", "type": "t", "param": None, "code": "c"}
    unsaid = ClientResponse(503, headers("MISS"), json.dumps({"error": said}).encode(), complete=True)
    assert check_response(ASKING, unsaid, noted()).defects == ["503 without Retry-After"]


def test_no_response_is_truncated_by_max_tokens() -> None:
    for number in range(2000):
        assert len(split_tokens(WorkloadQuestion(number).text("0123456789ab"))) <= MAX_TOKENS


def test_the_store_reads_what_engines_write_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "generations"
    store = GenerationIndex({ENGINE: path})
    assert store.find("a" * 12) is None
    line = json.dumps({"generation": "a" * 12, "at": 7.5, "asked_by": MINE.request_id()}) + "\n"
    path.write_text(line[:20])
    assert store.find("a" * 12) is None
    path.write_text(line)
    assert store.find("a" * 12) == LoggedGeneration("a" * 12, ENGINE, 7.5, MINE)
    assert len(store) == 1
