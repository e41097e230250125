"""LoRA adapters of the simulator: what vLLM 0.32 answers, as captured from a server on a CPU."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="session")

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """Its engine starts with the adapter `first`."""
    engine = SimulatedEngine(
        "/models/llama", served_model_name=("tiny/llama",), enable_lora=True, allow_runtime_lora_updating=True,
        lora_modules=('{"name": "first", "path": "/a1"}',),
    )  # fmt: skip
    async with engine, httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=TEST_TIMEOUT) as client:
        yield client


async def post(client: httpx.AsyncClient, path: str, body: Any) -> tuple[int, Any]:
    response = await client.post(path, json=body)
    is_json = response.headers.get("content-type") == "application/json"
    return response.status_code, response.json()["error"] if is_json else response.text


def error(status: int, message: str, kind: str, param: str | None = None) -> tuple[int, Any]:
    return status, {"message": message, "type": kind, "param": param, "code": status}


async def test_the_list_has_the_adapters_after_the_models(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()["data"]
    shown = [{name: model[name] for name in ("id", "root", "parent", "max_model_len")} for model in models]
    assert shown == [
        {"id": "tiny/llama", "root": "/models/llama", "parent": None, "max_model_len": 8192},
        {"id": "first", "root": "/a1", "parent": "tiny/llama", "max_model_len": None},
    ]
    assert [list(model) for model in models] == [
        ["id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"]
    ] * 2


async def test_loading_and_unloading_are_answered_as_by_vllm(client: httpx.AsyncClient) -> None:
    second = {"lora_name": "second", "lora_path": "/a2"}
    added = (200, "Success: LoRA adapter 'second' added successfully.")
    assert await post(client, LOAD, second) == added
    assert await post(client, LOAD, second) == error(
        400,
        "The lora adapter 'second' has already been loaded. If you want to load the adapter in place, set "
        "'load_inplace' to True.",
        "InvalidUserInput",
    )
    assert await post(client, LOAD, {**second, "lora_path": "/a1", "load_inplace": True}) == added
    assert await post(client, UNLOAD, {"lora_name": "second"}) == (
        200, "Success: LoRA adapter 'second' removed successfully.",
    )  # fmt: skip
    assert await post(client, UNLOAD, {"lora_name": "second"}) == error(
        404, "The lora adapter 'second' cannot be found.", "NotFoundError"
    )


MISSING_PATH = (
    "1 validation error:\n  {'type': 'missing', 'loc': 'body.lora_path', 'msg': 'Field required', "
    "'input': '<dict of 1 items>'}"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"lora_name": "third", "lora_path": "/missing"},
         error(404, "Loading lora third failed: No adapter found for /missing", "NotFoundError")),
        ({"lora_name": "tiny/llama", "lora_path": "/a"},
         error(400, "The lora adapter 'tiny/llama' conflicts with a served base model.", "InvalidUserInput")),
        ({"lora_name": "", "lora_path": "/a"},
         error(400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput")),
        ({"lora_name": "x"}, error(400, MISSING_PATH, "Bad Request", "body.lora_path")),
    ],
)  # fmt: skip
async def test_a_load_is_refused_in_the_words_of_vllm(client: httpx.AsyncClient, body: Any, expected: Any) -> None:
    assert await post(client, LOAD, body) == expected


async def test_an_adapter_answers_under_its_name_and_says_something_else(client: httpx.AsyncClient) -> None:
    answers = {}
    for model in ("tiny/llama", "first"):
        body = {"model": model, "prompt": "def main", "max_tokens": 8}
        answer = (await client.post("/v1/completions", json=body)).json()
        assert answer["model"] == model
        answers[model] = answer["choices"][0]["text"]
    assert answers["first"] != answers["tiny/llama"]
    status, refusal = await post(client, "/v1/completions", {"model": "third", "prompt": "x"})
    assert (status, refusal["message"]) == (404, "The model `third` does not exist. Valid aliases: tiny/llama.")


async def test_without_the_options_there_are_no_such_paths_and_no_adapters() -> None:
    async with (
        SimulatedEngine("m") as engine,
        httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=TEST_TIMEOUT) as client,
    ):
        response = await client.post(LOAD, json={"lora_name": "a", "lora_path": "/a"})
        assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})
    async with SimulatedEngine("m", allow_runtime_lora_updating=True) as engine:
        async with httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=TEST_TIMEOUT) as client:
            status, refusal = await post(client, LOAD, {"lora_name": "a", "lora_path": "/a"})
        assert (status, refusal["message"]) == (500, "LoRA is not enabled. Use --enable-lora to enable LoRA.")
