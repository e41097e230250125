"""The oracle reports every kind of wrong response."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.simulator.text.tokens import split_tokens
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

ORIGIN = RequestOrigin("globex", WorkloadQuestion(4), CACHE_DIRECTIVES["none"], 41)
STORED = replace(ORIGIN, serial=40)
REQUEST = ClientRequest(ORIGIN, router=0, stream=False, usage=False, leaves_after=None)
STREAM_REQUEST = replace(REQUEST, stream=True)
ENGINE = "llama-chat"


class OneGeneration(GenerationIndex):
    """Generations that no engine has written down, each with a name that follows from its request."""

    def __init__(self, origins: Iterable[RequestOrigin]) -> None:
        super().__init__({})
        self._generations = {
            name_of(origin): LoggedGeneration(name_of(origin), ENGINE, 5.0, origin) for origin in origins
        }


def name_of(origin: RequestOrigin) -> str:
    return f"{origin.serial:012x}"


OTHER_ORIGINS = [
    replace(STORED, tenant="acme", serial=1),
    replace(STORED, question=WorkloadQuestion(5), serial=2),
    replace(STORED, directive=CACHE_DIRECTIVES["no-store"], serial=3),
    replace(STORED, directive=CACHE_DIRECTIVES["ttl0"], serial=4),
    replace(STORED, directive=CACHE_DIRECTIVES["ttl1"], serial=5),
]


def generation_index() -> GenerationIndex:
    return OneGeneration([ORIGIN, STORED, *OTHER_ORIGINS])


def text(origin: RequestOrigin) -> str:
    return origin.question.text(name_of(origin))


def answer(origin: RequestOrigin, content: str | None = None, **fields: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text(origin) if content is None else content}
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
    known = {"x-request-id": ORIGIN.request_id(), "x-cache": cache, "age": "1", "x-engine": ENGINE}
    key = {} if cache == "BYPASS" else {"x-cache-key": expected_key(ORIGIN.tenant, ORIGIN.question).text}
    return {**known, **key, **{name.replace("_", "-"): value for name, value in others.items()}}


def defects_of(origin: RequestOrigin, cache: str = "HIT", **others: str) -> list[str]:
    reply = ClientResponse(200, headers(cache, **others), json.dumps(answer(origin)).encode(), complete=True)
    return check_response(REQUEST, reply, generation_index()).defects


def streamed(*frames: bytes, complete: bool = True, cache: str = "MISS") -> ResponseVerdict:
    return check_response(
        STREAM_REQUEST, ClientResponse(200, headers(cache), b"".join(frames), complete=complete), generation_index()
    )


def test_a_response_to_the_request_itself_is_valid() -> None:
    assert defects_of(ORIGIN, "MISS") == defects_of(STORED) == defects_of(STORED, "STALE", age="3606") == []
    own, kept = streamed(*events(ORIGIN), DONE_FRAME), streamed(*events(STORED), DONE_FRAME, cache="HIT")
    assert (own.ending, own.defects) == (kept.ending, kept.defects) == ("complete", [])
    assert own.generation is not None
    assert own.generation.origin == ORIGIN


@pytest.mark.parametrize(
    ("origin", "cache", "others"),
    [
        *[(origin, "HIT", {}) for origin in OTHER_ORIGINS[:4]],
        (OTHER_ORIGINS[2], "COALESCED", {}),
        (OTHER_ORIGINS[4], "HIT", {"age": "2"}),
        (STORED, "MISS", {}),
        (STORED, "HIT", {"age": "7"}),
        (STORED, "STALE", {"age": "3607"}),
        (STORED, "HIT", {"x_cache_key": "rh:1:acme:llama:0:0:0"}),
        (STORED, "HIT", {"x_request_id": STORED.request_id()}),
        (STORED, "HIT", {"x_engine": "llama-code"}),
        (STORED, "NONE", {}),
        (replace(STORED, serial=99), "HIT", {}),
    ],
)
def test_a_response_to_another_request_is_reported(origin: RequestOrigin, cache: str, others: dict[str, str]) -> None:
    assert defects_of(origin, cache, **others) != []


def test_headers_that_came_with_a_heartbeat_may_not_tell_yet_whose_generation_it_is() -> None:
    early = headers("MISS")
    del early["x-engine"]
    for begin, flaws in ((b": heartbeat\n\n", 0), (b"", 2)):
        body = begin + b"".join([*events(STORED), DONE_FRAME])
        verdict = check_response(STREAM_REQUEST, ClientResponse(200, early, body, complete=True), generation_index())
        assert len(verdict.defects) == flaws


@pytest.mark.parametrize(
    "content",
    [
        text(ORIGIN)[:-1],
        text(ORIGIN).replace(name_of(ORIGIN), name_of(STORED), 1),  # the start of one generation, the rest of another
        text(ORIGIN)[:20] + text(STORED)[20:],
        f"and {text(ORIGIN)}",
        "",
    ],
)
def test_a_text_that_is_not_exactly_one_generation_is_reported(content: str) -> None:
    reply = ClientResponse(200, headers("MISS"), json.dumps(answer(ORIGIN, content)).encode(), complete=True)
    assert check_response(REQUEST, reply, generation_index()).defects != []


def test_two_clients_that_get_one_generation_under_two_ids_are_reported() -> None:
    store, reply = (
        generation_index(),
        ClientResponse(200, headers("MISS"), json.dumps(answer(ORIGIN)).encode(), complete=True),
    )
    assert check_response(REQUEST, reply, store).defects == []
    other = json.dumps({**answer(ORIGIN), "id": "another"}).encode()
    assert check_response(REQUEST, reply._replace(body=other), store).defects != []


ERROR = b'data: {"error": {"message": "no", "type": "t", "param": null, "code": "c"}}\n\n'
FIRST, LAST = events(ORIGIN)


def test_a_stream_may_end_with_an_error_and_may_be_cut_even_within_the_name_of_its_generation() -> None:
    assert streamed(FIRST, ERROR)[:3] == ("broken, c", "MISS", [])
    assert streamed(FIRST, LAST[:20], complete=False)[:3] == ("cut", "MISS", [])
    assert streamed(events(ORIGIN, at=5)[0], complete=False) == ResponseVerdict("cut", "MISS", [], None)
    assert streamed(ERROR)[:3] == ("broken, c", "MISS", [])


@pytest.mark.parametrize(
    "frames",
    [
        (), (FIRST,), (FIRST, LAST), (FIRST, DONE_FRAME), (LAST, DONE_FRAME), (FIRST, LAST[:20]), (FIRST, ERROR,
        DONE_FRAME), (LAST, ERROR), (FIRST, events(STORED)[1], DONE_FRAME), (FIRST, FIRST, LAST, DONE_FRAME), (FIRST,
    LAST, DONE_FRAME, DONE_FRAME), ],
)  # fmt: skip
def test_a_stream_that_ends_in_another_way_is_reported(frames: tuple[bytes, ...]) -> None:
    assert streamed(*frames).defects != []


def test_errors_have_a_known_shape_and_a_status_that_a_fault_explains() -> None:
    def error(status: int, tenant: str = ORIGIN.tenant, **fields: Any) -> ResponseVerdict:
        content = {"message": "no", "type": "t", "param": None, "code": "c", **fields}
        request = replace(REQUEST, origin=replace(ORIGIN, tenant=tenant))
        response_headers = {**headers("MISS"), "x-request-id": request.origin.request_id(), "retry-after": "1"}
        response_headers = response_headers if status in (429, 503) else headers("MISS")
        return check_response(
            request,
            ClientResponse(status, response_headers, json.dumps({"error": content}).encode(), complete=True),
            generation_index(),
        )

    assert error(502) == ResponseVerdict("502 c", None, [])
    assert error(429, "hooli", code="rate_limit_exceeded", type="requests").defects == []
    assert error(429, code="tenant_queue_full").defects == []
    refused = error(429, code="rate_limit_exceeded", type="requests")
    for bad in (error(500), error(404), error(502, message=""), error(502, more=1), refused):
        assert len(bad.defects) == 1
    content = {"message": "no", "type": "t", "param": None, "code": "c"}
    unexplained = ClientResponse(503, headers("MISS"), json.dumps({"error": content}).encode(), complete=True)
    assert check_response(REQUEST, unexplained, generation_index()).defects == ["503 without Retry-After"]


def test_no_response_is_truncated_by_max_tokens() -> None:
    for number in range(2000):
        assert len(split_tokens(WorkloadQuestion(number).text("0123456789ab"))) <= MAX_TOKENS


def test_the_store_reads_what_engines_write_and_waits_for_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "generations"
    store = GenerationIndex({ENGINE: path})
    assert store.find("a" * 12) is None
    line = json.dumps({"generation": "a" * 12, "at": 7.5, "asked_by": ORIGIN.request_id()}) + "\n"
    path.write_text(line[:20])
    assert store.find("a" * 12) is None
    path.write_text(line)
    assert store.find("a" * 12) == LoggedGeneration("a" * 12, ENGINE, 7.5, ORIGIN)
    assert len(store) == 1
