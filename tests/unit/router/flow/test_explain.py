"""Explains a request: its key part by part, what is stored there, and the nearest entry."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.stream_encoding import encode_stream
from router.core.endpoints.responses import RESPONSES
from router.core.types import Entry
from router.errors import ApiError
from router.flow.explain.explainer import Explainer, ExplainRequest, Explanation
from router.flow.parsed_request import ParsedRequest
from router.net.redis.connect import open_client
from router.net.redis.errors import RedisBackendError
from router.process.wiring.admin import build_explainer
from router.process.wiring.request_resolver import build_request_resolver
from router.settings import parse
from router.upstream.configured_catalog import build_catalog
from tests.support.entry_factory import make_entry, store_entry
from tests.support.redis_process import RedisServer
from tests.support.router_server import RouterServer, chat_body, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENGINES = {
    "one": ("llama", "any", "http://127.0.0.1:1"), "two": ("mistral", "any", "http://127.0.0.1:2"),
}  # fmt: skip
TENANTS = '[[tenant]]\nname = "acme"\n'

Explain = Callable[..., Awaitable[Explanation]]


def explainer(url: str, client: Any, *, cache: str = "") -> Explainer:
    settings = parse(router_config(url, ENGINES, cache=cache, rest=TENANTS), {})
    return build_explainer(settings, build_request_resolver(settings, build_catalog(settings)), client)


def read(body: Any, tenant: str = "default", endpoint: Endpoint = CHAT) -> ParsedRequest:
    settings = parse(router_config("redis://x", ENGINES), {})
    return build_request_resolver(settings, build_catalog(settings)).resolve(
        endpoint, tenant, json.dumps(body).encode()
    )


async def store_response(client: Any, request_body: Any, tenant: str = "default", **fields: Any) -> Entry:
    """Stores a response to a request, as a router would."""
    reading = read(request_body, tenant)
    of = reading.fingerprint
    kept = make_entry(
        digest=reading.key.digest,
        documents=reading.parts.document_names(),
        question=of.question,
        params=of.params,
        **fields,
    )
    await store_entry(client, reading.key.text, kept)
    return kept


@pytest_asyncio.fixture(loop_scope="session")
async def explain(redis_server: RedisServer, client: Any) -> Explain:
    one = explainer(redis_server.url, client)

    async def ask(body: Any, **about: str) -> Explanation:
        return await one.explain(ExplainRequest(msgspec.Raw(json.dumps(body).encode()), **about))

    return ask


SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<context>one</context> Why?"},
]
BODY = {"model": "llama", "messages": SAID}


async def test_a_request_whose_response_is_stored_would_hit(client: Any, explain: Explain) -> None:
    await store_response(client, BODY)
    explanation = await explain(BODY)
    assert (explanation.result, explanation.reason, explanation.state, explanation.nearest) == (
        "HIT",
        None,
        "fresh",
        None,
    )
    assert explanation.entry is not None
    assert explanation.entry.engine == "llama-chat"
    stream = await explain({**BODY, "stream": True, "user": "somebody"})
    assert (stream.result, stream.key) == ("MISS", explanation.key), (
        "the stored body is no answer that a stream could tell"
    )
    assert stream.state == "no-such-form"


async def test_a_request_served_before_would_hit_and_its_key_is_the_one_in_its_header(
    router: RouterServer, config: str, client: Any
) -> None:
    settings = parse(config, {})
    one = build_explainer(settings, build_request_resolver(settings, build_catalog(settings)), client)
    for body in (chat_body("Tell me about the sea."), chat_body("x", model="auto", temperature=0, stream=True)):
        sent = await router.post("/v1/chat/completions", body)
        explanation = await one.explain(ExplainRequest(msgspec.Raw(json.dumps(body).encode())))
        assert (explanation.result, explanation.key) == ("HIT", sent.headers["x-cache-key"])
        assert explanation.task == sent.headers["x-task"]


async def test_of_several_samples_all_must_be_stored_for_a_hit(client: Any, redis_server: RedisServer) -> None:
    one = explainer(redis_server.url, client, cache="samples = 2")

    async def ask(**fields: Any) -> Explanation:
        return await one.explain(ExplainRequest(msgspec.Raw(json.dumps({**BODY, **fields}).encode())))

    first = await store_response(client, BODY)
    explanation = await ask()
    key = read(BODY).key
    assert (explanation.result, explanation.reason, explanation.state) == ("MISS", "sample", "absent")
    assert explanation.key == key.sample(1).text
    assert explanation.nearest is not None
    assert explanation.nearest.key == key.text
    await store_entry(client, key.sample(1).text, msgspec.structs.replace(first, digest=key.sample(1).digest))
    explanation = await ask()
    assert (explanation.result, explanation.why) == ("HIT", "All 2 samples are stored, and handed out in turn.")
    assert (await ask(seed=1)).reason == "params"
    await client.delete(key.text)
    assert ((await ask()).reason, (await ask()).key) == ("sample", key.text)


async def test_the_key_is_shown_part_by_part(explain: Explain) -> None:
    explanation = await explain({**BODY, "documents": [{"doc_id": "handbook", "text": "t"}]}, tenant="acme")
    parts = {part.part: part.value for part in explanation.parts}
    assert list(parts) == ["tenant", "model", "system", "rag", "query"]
    assert explanation.key == "rh:1:" + ":".join(parts.values())
    assert (parts["tenant"], explanation.model, explanation.task) == ("acme", "llama", "chat")
    assert explanation.documents[0] == "handbook"
    assert len(explanation.documents) == 2
    made_of = {part.part: part.made_of for part in explanation.parts}
    assert made_of["system"] == "9 characters of system text"
    assert "Be brief" not in msgspec.json.encode(explanation).decode()


async def test_a_request_without_system_text_or_context_is_described_as_such(explain: Explain) -> None:
    made_of = {part.part: part.made_of for part in (await explain(chat_body("Hi"))).parts}
    assert (made_of["system"], made_of["rag"]) == ("no system text", "no retrieved context")


async def test_without_entries_it_is_new(explain: Explain) -> None:
    explanation = await explain(BODY)
    assert (explanation.result, explanation.reason, explanation.state) == ("MISS", "new", "absent")
    assert explanation.nearest is not None
    assert (explanation.nearest.key, explanation.nearest.looked_at, explanation.nearest.everything) == (None, 0, True)


@pytest.mark.parametrize(
    ("part", "body"),
    [
        ("system", {**BODY, "messages": [{"role": "system", "content": "Be brief. "}, SAID[1]]}),
        ("rag", {**BODY, "messages": [SAID[0], {"role": "user", "content": "<context>two</context> Why?"}]}),
        ("query", {**BODY, "messages": [SAID[0], {"role": "user", "content": "<context>one</context> How?"}]}),
        ("params", {**BODY, "temperature": 0.5}),
        ("params", {**BODY, "somebodys_field": 1}),
        ("model", {**BODY, "model": "mistral"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_miss_by_one_part_names_it(client: Any, explain: Explain, part: str, body: Any) -> None:
    await store_response(client, BODY)
    explanation = await explain(body)
    assert (explanation.result, explanation.reason) == ("MISS", part)
    assert explanation.nearest is not None
    assert (explanation.nearest.key, explanation.nearest.differs) == (read(BODY).key.text, [part])
    assert len(explanation.differs) == 1


async def test_a_miss_by_several_parts_names_them_all(client: Any, explain: Explain) -> None:
    await store_response(client, BODY)
    explanation = await explain({**chat_body("Something else"), "temperature": 0})
    assert explanation.reason == "new"
    assert explanation.nearest is not None
    assert explanation.nearest.differs == ["system", "rag", "query", "params"]
    assert len(explanation.differs) == 4


async def test_another_tenants_entry_explains_nothing(client: Any, explain: Explain) -> None:
    await store_response(client, BODY, "acme")
    explanation = await explain(BODY)
    assert explanation.reason == "new"
    assert explanation.nearest is not None
    assert explanation.nearest.looked_at == 0
    assert (await explain(BODY, tenant="acme")).result == "HIT"


async def test_an_expired_entry_is_not_a_hit(client: Any, explain: Explain) -> None:
    await store_response(client, BODY, created=time.time() - 100, ttl=50.0)
    explanation = await explain(BODY)
    assert (explanation.result, explanation.reason, explanation.state) == ("MISS", "expired", "stale")


async def test_the_entry_of_another_request_with_the_same_hashes_is_not_a_hit(client: Any, explain: Explain) -> None:
    await store_entry(client, read(BODY).key.text, make_entry(digest="e" * 64))
    explanation = await explain(BODY)
    assert (explanation.result, explanation.state) == ("MISS", "other-digest")


@pytest.mark.parametrize("command", [("SET", "x"), ("HSET", "digest", "only"), ("HSET", b"\xff", b"\xff")])
async def test_an_invalid_value_at_the_key_is_not_a_hit(
    client: Any, explain: Explain, command: tuple[Any, ...]
) -> None:
    await client.execute_command(command[0], read(BODY).key.text, *command[1:])
    explanation = await explain(BODY)
    assert (explanation.result, explanation.state) == ("MISS", "unreadable")


async def test_an_entry_written_after_its_purge_is_not_a_hit(client: Any, explain: Explain) -> None:
    await store_response(client, BODY)
    await client.xadd(PURGE_LOG_KEY, {"scope": '{"all":true}'})  # the entry has escaped the purge's deletion
    explanation = await explain(BODY)
    assert (explanation.result, explanation.state) == ("MISS", "purged")


async def test_an_entry_that_can_only_be_streamed_is_not_a_hit_for_json(client: Any, explain: Explain) -> None:
    await store_response(client, BODY, stream=encode_stream(StreamParts(), b"{}", None, lossless=False), body=b"{}")
    assert (await explain(BODY)).state == "no-such-form"
    assert (await explain({**BODY, "stream": True})).result == "HIT"


async def test_a_request_that_the_configuration_excludes_is_not_looked_up(
    redis_server: RedisServer, client: Any
) -> None:
    one = explainer(redis_server.url, client, cache='store = "deterministic"')
    explanation_ = await one.explain(ExplainRequest(msgspec.Raw(json.dumps(BODY).encode())))
    assert (explanation_.result, explanation_.reason, explanation_.state, explanation_.nearest) == (
        "BYPASS",
        "policy",
        None,
        None,
    )
    assert explanation_.why == 'cache.store is "deterministic", and the request has neither temperature 0 nor a seed.'


@pytest.mark.parametrize(
    ("body", "about", "param"),
    [
        (BODY, {"tenant": "nobody"}, "tenant"),
        (BODY, {"path": "/v1/nothing"}, "path"),
        ({**BODY, "model": "nope"}, {}, "model"),
        ({"model": "llama"}, {}, "messages"),
        ({"messages": SAID}, {}, "model"),
    ],
)
async def test_a_request_that_the_router_would_refuse_is_refused(
    explain: Explain, body: Any, about: dict[str, str], param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await explain(body, **about)
    assert caught.value.param == param


async def test_explaining_changes_nothing(client: Any, explain: Explain) -> None:
    await store_response(client, BODY)
    before = {name: await client.dump(name) for name in await client.keys("*")}
    await explain(BODY)
    await explain(chat_body("Something else"))
    assert {name: await client.dump(name) for name in await client.keys("*")} == before


async def test_without_redis_it_reports_that(own_redis: RedisServer) -> None:
    client = open_client(own_redis.url, timeout=1)
    with pytest.raises(RedisBackendError):
        await explainer(own_redis.url, client).explain(ExplainRequest(msgspec.Raw(json.dumps(BODY).encode())))
    await client.aclose()


@pytest.mark.parametrize(
    ("endpoint", "fields", "message"),
    [
        (RESPONSES, {"input": "x", "conversation": "conv_1"}, "`conversation`"),
        (RESPONSES, {"input": "x", "tools": [{"type": "web_search"}]}, "`web_search`"),
        (RESPONSES, {"input": [{"id": "a"}], "store": False}, "`input`"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"image_url": "https://example.com/cat.png"}]}]},
            "`image_url`",
        ),
    ],
)
async def test_an_uncacheable_request_is_explained_by_its_reason(
    explain: Explain, endpoint: Endpoint, fields: dict[str, Any], message: str
) -> None:
    explanation = await explain({"model": "llama", **fields}, path=endpoint.path)
    assert (explanation.result, explanation.reason) == ("BYPASS", "uncacheable")
    assert message in explanation.why
    assert "cache.store" not in explanation.why


async def test_remote_content_that_is_stable_is_explained_like_any_other(
    redis_server: RedisServer, client: Any
) -> None:
    one = explainer(redis_server.url, client, cache='remote_content = "stable"')
    content = [{"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}]
    body = {"model": "llama", "messages": [{"role": "user", "content": content}]}
    explanation = await one.explain(ExplainRequest(msgspec.Raw(json.dumps(body).encode())))
    assert explanation.result == "MISS"
