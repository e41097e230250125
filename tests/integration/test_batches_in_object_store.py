"""Files and batches in S3: two routers on sockets, with OpenAI's client."""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from tests.integration.test_batches import lines, results, run
from tests.support.object_store import ObjectStore
from tests.support.router_server import MakeRouter, RouterServer

pytestmark = pytest.mark.asyncio(loop_scope="session")


def client_of(router: RouterServer) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False, trust_env=False)
    return AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)


async def test_routers_share_a_batch_in_an_object_store(
    make_router: MakeRouter, config: str, object_store: ObjectStore
) -> None:
    with_store = f'{config}\n[batch]\nfolder = "s3://{object_store.bucket}/files"\n'
    first, second = [await make_router(with_store) for _ in range(2)]
    content = lines(120)
    async with client_of(first) as one, client_of(second) as other:
        for cached in (0, 120):
            batch: Any = await run(one, content)
            assert (batch.status, batch.request_counts.completed) == ("completed", 120)
            assert batch.request_counts.cached == cached
            found = await results(other, batch.output_file_id)
            assert sorted(found) == sorted(f"n{number}" for number in range(120))
        ids = [file.id async for file in other.files.list()]
        assert len(ids) == 4
        assert object_store.names() == sorted(
            f"files/default/{id_}{suffix}" for id_ in ids for suffix in (".json", ".jsonl")
        )
        for id_ in ids:
            await other.files.delete(id_)
        assert object_store.names() == []
        assert [file async for file in one.files.list()] == []


async def test_files_are_unavailable_while_the_object_store_is_away(
    make_router: MakeRouter, config: str, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    router = await make_router(f'{config}\n[batch]\nfolder = "s3://{object_store.bucket}/files"\n')
    async with client_of(router) as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.files.create(file=("in.jsonl", json.dumps({}).encode() + b"\n"), purpose="batch")
        assert (refused.value.status_code, refused.value.code) == (503, "files_unavailable")
