"""/v1/batches at routers on sockets, with OpenAI's client, the cache and engines."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types import Batch, FileObject

from router.core.endpoints.table import ENDPOINT_BY_PATH
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, MakeRouter, RouterServer, router_config
from tests.support.scripted_engine import Request, Response, ScriptedEngine, json_response
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT: Any = "/v1/chat/completions"


def lines(count: int, *, first: int = 0, **fields: Any) -> bytes:
    requests = [
        {
            "custom_id": f"n{number}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": "llama",
                "messages": [{"role": "user", "content": f"How deep is sea {number}?"}],
                **fields,
            },
        }
        for number in range(first, first + count)
    ]
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


@pytest_asyncio.fixture(loop_scope="session")
async def router(make_router: MakeRouter, config: str, tmp_path: Path) -> RouterServer:
    return await make_router(f'{config}\n[batch]\nfolder = "{tmp_path}"\n')


@pytest_asyncio.fixture(loop_scope="session")
async def client(router: RouterServer) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(router) as client:
        yield client


def client_of(router: RouterServer) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    return AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)


async def run(client: AsyncOpenAI, content: bytes, **fields: Any) -> Any:
    """The batch at its end."""
    return await ended(client, await begin(client, content, **fields))


async def begin(client: AsyncOpenAI, content: bytes, **fields: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    fields = {"endpoint": CHAT, "completion_window": "24h"} | fields
    batch = await client.batches.create(input_file_id=file.id, **fields)
    assert (batch.status, batch.input_file_id) == ("validating", file.id)
    return batch


async def ended(client: AsyncOpenAI, batch: Any) -> Any:
    async def has_ended() -> bool:
        nonlocal batch
        batch = await client.batches.retrieve(batch.id)
        return batch.status in ("completed", "failed", "expired", "cancelled")

    await eventually(has_ended)
    return batch


async def results(client: AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    content = (await client.files.content(file_id)).content
    return {line["custom_id"]: line for line in map(json.loads, content.splitlines())}


async def test_openais_client_runs_a_batch_and_the_second_run_is_free(client: AsyncOpenAI) -> None:
    content = lines(20) + lines(5, first=100, temperature="hot")
    lifetime = {"anchor": "created_at", "seconds": 7200}
    batch = await run(client, content, metadata={"night": "1"}, output_expires_after=lifetime)
    for id_ in (batch.output_file_id, batch.error_file_id):
        file = await client.files.retrieve(id_)
        assert file.expires_at == file.created_at + 7200
    assert (batch.status, batch.metadata, batch.endpoint) == ("completed", {"night": "1"}, CHAT)
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (25, 20, 5)
    outputs, errors = await results(client, batch.output_file_id), await results(client, batch.error_file_id)
    assert set(outputs) == {f"n{number}" for number in range(20)}
    for line in outputs.values():
        assert line["response"]["status_code"] == 200
        assert line["response"]["cache"] == "MISS"
        assert line["response"]["body"]["choices"][0]["message"]["content"]
    assert {line["response"]["status_code"] for line in errors.values()} == {400}
    again = await run(client, content)
    assert again.request_counts.cached == 20
    for custom_id, line in (await results(client, again.output_file_id)).items():
        assert line["response"]["cache"] == "HIT"
        assert line["response"]["body"] == outputs[custom_id]["response"]["body"]
    listed = [each async for each in client.batches.list(limit=1)]
    assert [each.id for each in listed][:2] == [again.id, batch.id]


async def test_what_is_no_batch_is_refused(client: AsyncOpenAI, router: RouterServer) -> None:
    file = await client.files.create(file=("in.jsonl", lines(1)), purpose="batch")
    good: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    for changed, code in (
        ({"endpoint": "/v1/nothing"}, "invalid_endpoint"),
        ({"endpoint": 7}, "invalid_batch"),
        ({"completion_window": "soon"}, "invalid_completion_window"),
        ({"input_file_id": "file-" + 32 * "0"}, "file_not_found"),
        ({"input_file_id": "../../etc/passwd"}, "file_not_found"),
        ({"metadata": {"a": 7}}, "invalid_batch"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3599}}, "invalid_batch"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "invalid_batch"),
        ({"metadata": {str(number): "" for number in range(17)}}, "invalid_metadata"),
    ):
        answer = await router.http.post("/v1/batches", json=good | changed)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), changed
    for path in ("/v1/batches/batch_0", "/v1/batches/batch_0/cancel", "/v1/batches/x/pause"):
        answer = await router.http.request("GET" if path.endswith("_0") else "POST", path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "batch_not_found")
    for query in ("limit=101", "limit=" + 5000 * "9", "limit=%C2%B2", "after=" + 5000 * "x"):
        answer = await router.http.get(f"/v1/batches?{query}")
        assert answer.status_code == 400
        assert len(answer.text) < 400
    answer = await router.http.get("/v1/batches/" + 5000 * "x")
    assert (answer.status_code, len(answer.text) < 400) == (404, True)


async def test_a_tenant_has_no_more_batches_than_it_may(make_router: MakeRouter, config: str, tmp_path: Path) -> None:
    router = await make_router(f'{config}\n[batch]\nfolder = "{tmp_path}"\nmax_batches = 1\n')
    content = lines(3000, first=20_000, max_tokens=60)
    uploaded = await router.http.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)})
    body = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    assert (await router.http.post("/v1/batches", json=body)).status_code == 200
    refused = await router.http.post("/v1/batches", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "batch_limit")
    assert refused.headers["retry-after"] == "60"


async def test_a_batch_is_paused_resumed_and_cancelled(client: AsyncOpenAI, router: RouterServer) -> None:
    file = await client.files.create(file=("in.jsonl", lines(3000, first=10_000, max_tokens=60)), purpose="batch")
    batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

    async def has_begun() -> bool:
        return (await client.batches.retrieve(batch.id)).status == "in_progress"

    await eventually(has_begun)
    answer = await router.http.post(f"/v1/batches/{batch.id}/pause")
    assert answer.json()["paused"] is True
    answer = await router.http.post(f"/v1/batches/{batch.id}/resume")
    assert answer.json()["paused"] is False
    cancelling = await client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"

    async def has_ended() -> bool:
        return (await client.batches.retrieve(batch.id)).status == "cancelled"

    await eventually(has_ended)
    with pytest.raises(openai.ConflictError):
        await router_pause(client, batch.id)
    ended = await client.batches.cancel(batch.id)
    assert ended.status == "cancelled"


async def router_pause(client: AsyncOpenAI, id_: str) -> None:
    await client.post(f"/batches/{id_}/pause", cast_to=object)


async def test_a_batch_is_shared_by_two_routers_and_survives_both(
    make_router: MakeRouter, config: str, tmp_path: Path
) -> None:
    text = f'{config}\n[batch]\nfolder = "{tmp_path}"\n'
    first, second = await make_router(text), await make_router(text)
    uploaded = await first.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", lines(400, first=50_000))}
    )
    created = await second.http.post(
        "/v1/batches",
        json={"input_file_id": uploaded.json()["id"], "endpoint": CHAT, "completion_window": "1h"},
    )
    id_ = created.json()["id"]

    async def has_ended() -> bool:
        shown = (await first.http.get(f"/v1/batches/{id_}")).json()
        return bool(shown["status"] == "completed")

    await eventually(has_ended)
    shown = (await second.http.get(f"/v1/batches/{id_}")).json()
    output = await second.http.get(f"/v1/files/{shown['output_file_id']}/content")
    found = [json.loads(line)["custom_id"] for line in output.text.splitlines()]
    assert sorted(found) == sorted(f"n{number}" for number in range(50_000, 50_400))


async def test_no_line_begins_while_redis_is_down_so_that_its_answer_is_stored(
    make_router: MakeRouter, tmp_path: Path
) -> None:
    is_held, is_released = asyncio.Event(), asyncio.Event()

    async def answer(request: Request) -> Response:
        if len(engine.bodies) == 3:
            is_held.set()
            await is_released.wait()
        choice = {"index": 0, "message": {"role": "assistant", "content": "Deep."}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return json_response({"id": "1", "model": LLAMA, "choices": [choice], "usage": usage})

    engine, redis = ScriptedEngine(script=answer), RedisServer("--appendonly", "yes")
    await engine.start()
    try:
        await redis.start()
        rest = f'[batch]\nfolder = "{tmp_path}"\nmax_in_flight = 1\n'
        router = await make_router(router_config(redis.url, {"one": ("llama", "any", engine.url)}, rest=rest))
        async with client_of(router) as client:
            batch = await begin(client, lines(6))
            await is_held.wait()
            redis.kill()

            async def is_up() -> bool:
                return bool((await router.http.get("/healthz")).json()["redis"] == "up")

            async def is_down() -> bool:
                return not await is_up()

            await eventually(is_down)
            is_released.set()
            await eventually(lambda: not engine.running)
            await redis.start()
            await eventually(is_up)
            await ended(client, batch)
            again = await run(client, lines(6))
    finally:
        await engine.stop()
        redis.remove()
    assert again.request_counts.cached == 6, "the line that was in flight, too"


async def test_responses_of_lines_are_kept_only_if_they_ask_for_it(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="llama", input="How deep is the sea?")
    bodies: list[dict[str, Any]] = [{}, {"store": True}, {"store": False}, {"previous_response_id": first.id}]
    requests = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/responses",
         "body": {"model": "llama", "input": f"And lake {number}?"} | body}
        for number, body in enumerate(bodies)
    ]  # fmt: skip
    batch = await run(client, "\n".join(map(json.dumps, requests)).encode(), endpoint="/v1/responses")
    outputs = await results(client, batch.output_file_id)
    ids = {custom_id: line["response"]["body"]["id"] for custom_id, line in outputs.items()}
    assert (await client.responses.retrieve(ids["1"])).id == ids["1"]
    for custom_id in ("0", "2", "3"):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(ids[custom_id])


CASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]},
    "/v1/completions": {"model": "llama", "prompt": "The sea"},
    "/v1/responses": {"model": "llama", "input": "The sea?"},
    "/v1/messages": {"model": "llama", "max_tokens": 5, "messages": [{"role": "user", "content": "The sea?"}]},
    "/v1/messages/count_tokens": {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]},
    "/tokenize": {"model": "llama", "prompt": "The sea"},
    "/detokenize": {"model": "llama", "tokens": [1, 2]},
    "/v1/embeddings": {"model": "embed", "input": "The sea"},
    "/pooling": {"model": "embed", "input": "The sea"},
    "/classify": {"model": "classify", "input": "The sea"},
    "/score": {"model": "embed", "text_1": "The sea", "text_2": "deep"},
    "/v1/score": {"model": "embed", "text_1": "The sea", "text_2": "deep"},
    "/rerank": {"model": "embed", "query": "The sea", "documents": ["deep", "blue"]},
    "/v1/rerank": {"model": "embed", "query": "The sea", "documents": ["deep", "blue"]},
    "/v2/rerank": {"model": "embed", "query": "The sea", "documents": ["deep", "blue"]},
}


async def test_every_endpoint_takes_batches_and_its_errors_have_its_form(
    make_router: MakeRouter, config: str, tmp_path: Path
) -> None:
    assert set(CASES) == set(ENDPOINT_BY_PATH)
    async with AsyncExitStack() as stack:
        text = f'{config}\n[batch]\nfolder = "{tmp_path}"\n'
        for task in ("embed", "classify"):
            engine = SimulatedEngine(task, runner="pooling", pooling_task=task)
            await stack.enter_async_context(engine)
            text += f'[[model]]\nname = "{task}"\n[[engine]]\nname = "{task}"\nmodel = "{task}"\nurl = "{engine.url}"\n'
        router = await make_router(text)
        client = await stack.enter_async_context(client_of(router))

        async def check(path: str, body: dict[str, Any]) -> None:
            bodies = [body, {**body, "model": "unknown"}, {"model": body["model"]}]
            requests = [
                {"custom_id": str(number), "method": "POST", "url": path, "body": each}
                for number, each in enumerate(bodies)
            ]
            content = "\n".join(map(json.dumps, requests)).encode()
            batch = await run(client, content, endpoint=path)
            outputs, errors = await results(client, batch.output_file_id), await results(client, batch.error_file_id)
            assert set(outputs) == {"0"}, path
            assert outputs["0"]["response"]["status_code"] == 200
            statuses = {custom_id: error["response"]["status_code"] for custom_id, error in errors.items()}
            assert statuses == {"1": 404, "2": 400}, path
            for error in errors.values():
                assert error["response"]["body"]["error"]["message"]
                assert ("type" in error["response"]["body"]) == path.startswith("/v1/messages")

        await asyncio.gather(*[check(path, body) for path, body in CASES.items()])


async def test_objects_have_the_types_of_openais_client(client: AsyncOpenAI, router: RouterServer) -> None:
    await run(client, b'{"custom_id": "a"}\n', endpoint="/v1/embeddings")
    await run(client, lines(2, first=900) + b"{}\n")
    for path, kind in (("batches", Batch), ("files", FileObject)):
        page = (await router.http.get(f"/v1/{path}")).json()
        assert len(page["data"]) >= 2
        for each in page["data"]:
            kind.model_validate(each, strict=True)
