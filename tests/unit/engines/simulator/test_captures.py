"""The simulator's responses have the shape of those of a real vLLM 0.32 server."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from tests.support.http_exchange import send_request
from tests.support.json_shape import shape
from tests.support.paths import CAPTURES
from tests.support.simulated_engine import SimulatedEngine

pytestmark = pytest.mark.asyncio(loop_scope="module")

REQUESTS = json.loads((CAPTURES / "requests.json").read_text())
STREAMS = [name for name, request in REQUESTS.items() if '"stream": true' in request["body"] and "error" not in name]
ERRORS = [name for name in REQUESTS if "error" in name and name != "error-bad-role"]
PLAIN = [name for name in REQUESTS if name not in STREAMS and name not in ERRORS]


class Engines(NamedTuple):
    """A generating engine, one whose model calls the tool `look` once, one for embeddings, a cross-encoder, and one
    with three classes.
    """

    generate: SimulatedEngine
    agent: SimulatedEngine
    embed: SimulatedEngine
    classify: SimulatedEngine
    labels: SimulatedEngine

    def of(self, capture: str) -> SimulatedEngine:
        """The engine that has this captured endpoint."""
        by_name = "embed" if re.match("embeddings|error-embeddings-(?!no-route)", capture) else "generate"
        engine: SimulatedEngine = getattr(self, REQUESTS[capture].get("engine", by_name))
        return engine


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engines(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engines]:
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text('{"calls": 1, "tools": {"look": {"a": true}}}')
    pooling: dict[str, Any] = {"model": "tiny", "max_model_len": 1024, "runner": "pooling"}
    async with (
        SimulatedEngine(model="tiny", max_model_len=1024) as generate,
        SimulatedEngine(model="tiny", max_model_len=1024, tool_script=script) as agent,
        SimulatedEngine(**pooling) as embed,
        SimulatedEngine(**pooling, pooling_task="classify") as classify,
        SimulatedEngine(**pooling, pooling_task="classify", num_labels=3) as labels,
    ):
        yield Engines(generate, agent, embed, classify, labels)


@pytest.fixture
def engine(engines: Engines) -> SimulatedEngine:
    return engines.generate


def captured(name: str) -> tuple[int, dict[str, str], bytes]:
    head, _, body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")
    first, *lines = head.decode().splitlines()
    return int(first.split()[1]), dict(line.split(": ", 1) for line in lines), body


async def simulated(engines: Engines, name: str) -> tuple[int, dict[str, str], list[bytes]]:
    request = REQUESTS[name]
    headers = {"content-type": request.get("content_type", "application/json"), **request.get("headers", {})}
    body = request["body"].replace("{long}", "xyz " * 3000)
    response = await send_request(engines.of(name).url, request["method"], request["path"], body, **headers)
    assert response.complete
    left_out = ("date", "connection", "content-length", "transfer-encoding")
    kept = {key: value for key, value in response.headers.items() if key not in left_out}
    return response.status, kept, response.chunks


def events(body: bytes) -> Iterator[object]:
    assert body.endswith(b"\n\n")
    for event in body[:-2].split(b"\n\n"):
        kind, separator, data = event.rpartition(b"data: ")
        assert separator
        yield "[DONE]" if data == b"[DONE]" else json.loads(data)
        if kind:
            assert kind == b"event: " + json.loads(data)["type"].encode() + b"\n"


@pytest.mark.parametrize("name", PLAIN)
async def test_a_json_response_has_the_shape_of_vllms(engines: Engines, name: str) -> None:
    status, headers, body = captured(name)
    got_status, got_headers, chunks = await simulated(engines, name)
    assert (got_status, got_headers) == (status, headers)
    received = b"".join(chunks)
    if not body:
        assert received == b""
        return
    assert shape(json.loads(received)) == shape(json.loads(body))
    assert b'": ' not in re.sub(rb'"(?:[^"\\]|\\.)*"(?!:)', b"", received), "vLLM's JSON has no spaces"


@pytest.mark.parametrize("name", ERRORS)
async def test_an_error_is_vllms_word_for_word(engines: Engines, name: str) -> None:
    status, headers, body = captured(name)
    got_status, got_headers, chunks = await simulated(engines, name)
    assert (got_status, got_headers) == (status, headers)
    assert b"".join(chunks) == body


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_has_the_events_of_vllms_each_in_a_chunk_of_its_own(engines: Engines, name: str) -> None:
    status, headers, body = captured(name)
    got_status, got_headers, chunks = await simulated(engines, name)
    assert (got_status, got_headers) == (status, headers)
    actual = [list(events(chunk)) for chunk in chunks]
    assert all(len(chunk_events) == 1 for chunk_events in actual)
    assert shape([chunk_events for (chunk_events,) in actual]) == shape(list(events(body)))


async def test_a_dying_engine_ends_a_stream_with_the_bytes_of_vllm(engines: Engines) -> None:
    _, _, chunks = await simulated(engines, "core-killed-stream")
    _, _, body = captured("core-killed-stream")
    assert b"".join(chunks[-2:]) == b"\n\n".join(body.split(b"\n\n")[-3:])


async def test_a_dying_engine_ends_a_message_with_the_bytes_of_vllm(engines: Engines) -> None:
    _, _, chunks = await simulated(engines, "messages-core-killed-stream")
    _, _, body = captured("messages-core-killed-stream")
    assert chunks[-1] == body.split(b"\n\n")[-2] + b"\n\n"


async def test_the_request_id_of_the_client_is_in_the_responses_id(engines: Engines) -> None:
    _, _, chunks = await simulated(engines, "chat-request-id")
    assert json.loads(b"".join(chunks))["id"] == "chatcmpl-my-id-1"


async def test_metrics_have_vllms_names_types_help_and_labels(engine: SimulatedEngine) -> None:
    async with SimulatedEngine(model="tiny", max_model_len=1024, draft="d", num_speculative_tokens=4) as drafted:
        response = await send_request(drafted.url, "GET", "/metrics")
    lines = [
        line for line in response.body.decode().splitlines() if "vllm:" in line and "cache_config_info{" not in line
    ]
    actual = [line if line.startswith("#") else line.rpartition(" ")[0] for line in lines]
    expected = [
        line for line in (CAPTURES / "metrics.txt").read_text().splitlines() if "cache_config_info{" not in line
    ]
    assert sorted(actual) == sorted(expected)
    assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert not [name for name in await engine.metrics() if "spec_decode" in name], "only with a draft"
