"""/v1/audio/transcriptions and /v1/audio/translations, with openai-python and with bytes."""

import asyncio
import io
import wave
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio

from router.api.auth import hash_key
from tests.support.raw_http import connect
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter, RouterServer, ScriptedRouter
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

WHISPER = "openai/whisper-simulated"
PATH, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"


def speech(seconds: float = 1.5, level: int = 1) -> bytes:
    """A WAV file. Its samples have line ends, dashes and what else could be taken for a boundary."""
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(2)
        output.setframerate(16_000)
        samples = b"\r\n--boundary\x00\xff\r\n\r\n" + bytes([level, 0])
        output.writeframes((samples * 40_000)[: int(seconds * 32_000)])
    return file.getvalue()


def config(redis: RedisServer, *urls: str, router: str = "", rest: str = "") -> str:
    engines = "".join(
        f'[[engine]]\nname = "whisper-{number}"\nmodel = "whisper"\nurl = "{url}"\nserved_model = "{WHISPER}"\n'
        for number, url in enumerate(urls)
    )
    return (
        f'[router]\ndrain = "0s"\n{router}\n[cache]\nurl = "{redis.url}"\ntimeout = "2500ms"\n'
        f'[[model]]\nname = "whisper"\naliases = ["whisper-1"]\n{engines}{rest}'
    )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whisper() -> AsyncIterator[SimulatedEngine]:
    async with SimulatedEngine(WHISPER, speech=True, max_model_len=448) as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="session")
async def router(
    make_router: MakeRouter, redis_server: RedisServer, whisper: SimulatedEngine
) -> AsyncIterator[RouterServer]:
    yield await make_router(config(redis_server, whisper.url))
    await whisper.clear_faults()


@pytest_asyncio.fixture(loop_scope="session")
async def client(router: RouterServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with sdk(router) as one:
        yield one


def sdk(router: RouterServer, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{router.url}/v1",
        api_key=key,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(verify=False, trust_env=False),
    )


def form(file: bytes | None = None, /, **fields: str) -> dict[str, Any]:
    """The arguments of httpx for a form."""
    data = {"model": "whisper", **fields}
    return {"data": data, "files": {"file": ("speech.wav", speech() if file is None else file, "audio/wav")}}


async def test_openais_client_gets_what_the_engine_says(
    router: RouterServer, client: openai.AsyncOpenAI, whisper: SimulatedEngine
) -> None:
    file = speech()
    answer = await client.audio.transcriptions.create(
        model="whisper-1", file=("speech.wav", file), language="en", prompt="[[sim:say text=Good%20morning.]]"
    )
    assert answer.text == "Good morning."
    assert answer.to_dict()["usage"] == {"type": "duration", "seconds": 2}
    # Not `translations.create`, which the library calls deprecated.
    request = form(file, prompt="[[sim:say text=Good%20day.]]")
    assert (await router.http.post(TRANSLATE, **request)).json() == {"text": "Good day."}
    (*_, first, second) = (await whisper.stats())["requests"]
    assert (first["path"], second["path"]) == (PATH, TRANSLATE)
    assert f'name="model"\r\n\r\n{WHISPER}\r\n' in first["body"]
    assert 'name="language"\r\n\r\nen\r\n' in first["body"]


async def test_a_file_reaches_the_engine_byte_for_byte(router: RouterServer, whisper: SimulatedEngine) -> None:
    for file in (speech(), b"\r\n", b"--", bytes(range(256)) * 100, b"\r\n--\r\n" * 5000):
        through = await router.http.post(PATH, **form(file))
        direct = await router.http.post(f"{whisper.url}{PATH}", **form(file, model=WHISPER))
        assert through.json() == direct.json()  # the transcript is a function of the file's bytes


async def test_a_form_without_a_model_is_for_the_only_one(router: RouterServer, whisper: SimulatedEngine) -> None:
    direct = await router.http.post(f"{whisper.url}{PATH}", **form(model=WHISPER))
    named_none = form()
    del named_none["data"]["model"]
    for request in (named_none, form(model="")):
        through = await router.http.post(PATH, **request)
        assert (through.status_code, through.json()) == (200, direct.json())


async def test_openais_client_streams(client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(
        model="whisper",
        file=("speech.wav", speech()),
        stream=True,
        prompt="[[sim:say text=one%20two%20three]]",
        extra_body={"stream_include_usage": "true"},
    )
    events: list[Any] = [event.to_dict() async for event in stream]
    assert "".join(choice["delta"]["content"] for event in events for choice in event["choices"]) == "one two three"
    assert {event["object"] for event in events} == {"transcription.chunk"}
    assert events[-1]["usage"]["completion_tokens"] > 0
    assert len(events) > 3


async def test_a_stream_is_what_the_engine_sends(router: RouterServer, whisper: SimulatedEngine) -> None:
    request = form(stream="true", prompt="[[sim:say text=one%20two]]")
    through = await router.http.post(PATH, **request)
    request["data"]["model"] = WHISPER
    direct = await router.http.post(f"{whisper.url}{PATH}", **request)
    assert through.headers["content-type"] == "text/event-stream; charset=utf-8"

    def without_ids(answer: httpx.Response) -> list[str]:
        return [line.partition('"model"')[2] or line for line in answer.text.splitlines()]

    assert without_ids(through) == without_ids(direct)
    assert through.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_nothing_is_looked_up_stored_or_shared(
    router: RouterServer, whisper: SimulatedEngine, redis: Any, stream: str
) -> None:
    before = (await whisper.stats())["started"]
    answers = await asyncio.gather(*(router.http.post(PATH, **form(stream=stream, temperature="0")) for _ in range(3)))
    for answer in answers:
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "BYPASS")
        assert answer.headers["x-cache-reason"] == "uncacheable"
        assert "x-cache-key" not in answer.headers
        assert answer.headers["x-engine"] == "whisper-0"
    assert (await whisper.stats())["started"] == before + 3
    assert [key async for key in redis.scan_iter("rh:1:default:*")] == []
    only_cached = await router.http.post(PATH, **form(), headers={"cache-control": "only-if-cached"})
    assert (only_cached.status_code, only_cached.json()["error"]["code"]) == (504, "not_cached")


async def test_a_response_that_is_not_json_keeps_its_content_type(
    scripted: ScriptedRouter,
) -> None:
    subtitles = b"1\n00:00:00,000 --> 00:00:01,000\nHello\n"
    for sent, received in [
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("application/x-subrip", "application/x-subrip"),
        ("text/vtt", "text/vtt"),
        ("x" * 500, "application/json"),
        ("text/html; a=<script>", "application/json"),
    ]:
        router, _ = await scripted(subtitles, content_type=sent)
        answer = await router.http.post(PATH, **form(model="llama", response_format="srt"))
        assert (answer.status_code, answer.content) == (200, subtitles)
        assert answer.headers["content-type"] == received


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"response_format": "srt"}, 400, "Currently only support response_format"),
        ({"response_format": "verbose_json", "stream": "true"}, 400, "doesn't support streaming"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"model": "nothing"}, 404, "does not exist"),
        ({"stream": "perhaps"}, 400, "`stream`"),
    ],
)
async def test_a_wrong_request_is_refused_with_its_reason(
    router: RouterServer, fields: dict[str, str], status: int, said: str
) -> None:
    answer = await router.http.post(PATH, **form(**fields))
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


async def test_a_request_without_a_usable_form_is_refused(router: RouterServer) -> None:
    as_json = await router.http.post(PATH, json={"model": "whisper"})
    assert (as_json.status_code, as_json.json()["error"]["code"]) == (415, "unsupported_media_type")
    no_file = await router.http.post(PATH, files={"model": (None, "whisper")})
    assert (no_file.status_code, no_file.json()["error"]["param"]) == (400, "file")
    text_file = await router.http.post(PATH, files={"model": (None, "whisper"), "file": (None, "x")})
    assert (text_file.status_code, text_file.json()["error"]["param"]) == (400, "file")
    cut = await router.http.post(PATH, content=b"--b\r\n", headers={"content-type": "multipart/form-data; boundary=b"})
    assert (cut.status_code, cut.json()["error"]["code"]) == (400, "invalid_form")


async def test_an_engine_without_the_endpoint_is_told_as_such(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config)
    answer = await router.http.post(PATH, **form(model="llama"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_endpoint")


async def test_audio_has_a_bound_of_its_own(
    make_router: MakeRouter, redis_server: RedisServer, whisper: SimulatedEngine
) -> None:
    limits = 'max_body = "1KiB"\nmax_audio = "64KiB"\nmax_bodies = "96KiB"'
    router = await make_router(config(redis_server, whisper.url, router=limits))
    assert (await router.http.post(PATH, **form(speech(1.5)))).status_code == 200
    large = await router.http.post(PATH, **form(speech(3)))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    async with connect(router.port) as connection:
        # This one holds two thirds of the budget, and its generation too: the next upload finds no room.
        connection.write(
            b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-type: multipart/form-data; boundary=b\r\n" % PATH.encode()
        )
        connection.write(b"content-length: 60000\r\n\r\n" + b"x" * 59_999)
        await eventually(lambda: _holds(router, 59_999))
        refused = await router.http.post(PATH, **form(speech(1.5)))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "bodies_full")
        connection.write(b"x")
        assert (await connection.read_response()).status == 400


async def _holds(router: RouterServer, size: int) -> bool:
    return router.application._process_state.body_budget.allocated == size


async def test_a_key_is_required_and_limits_hold(
    make_router: MakeRouter, redis_server: RedisServer, whisper: SimulatedEngine
) -> None:
    keys = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"key")}"]\nrequests_per_minute = 1\n'
    router = await make_router(config(redis_server, whisper.url, rest=f"{keys}tokens_per_minute = 20000\n"))
    assert (await router.http.post(PATH, **form())).status_code == 401
    key = {"authorization": "Bearer key"}
    first = await router.http.post(PATH, **form(speech(20)), headers=key)
    second = await router.http.post(PATH, **form(), headers=key)
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["error"]["type"] == "requests"
    # 640 KB of audio are not counted as text.
    assert int(second.headers["x-ratelimit-remaining-tokens"]) > 19_000


@pytest.mark.parametrize("stream", ["false", "true"])
@pytest.mark.parametrize("fault", [{"fault": "drop"}, {"fault": "status", "code": 503}, {"fault": "malformed"}])
async def test_an_engine_that_fails_before_the_first_byte_is_replaced(
    make_router: MakeRouter, redis_server: RedisServer, whisper: SimulatedEngine, fault: dict[str, Any], stream: str
) -> None:
    async with SimulatedEngine(WHISPER, speech=True, max_model_len=448) as other:
        await other.set_faults(fault)
        router = await make_router(config(redis_server, other.url, whisper.url))
        answers = [await router.http.post(PATH, **form(stream=stream)) for _ in range(4)]
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.headers["x-engine"] for answer in answers} == {"whisper-1"}
        metrics = await router.metrics()
        assert any(name.startswith('llm_retries_total{engine="whisper-0"') for name in metrics)
    await whisper.clear_faults()


async def test_a_stream_that_breaks_off_ends_with_an_error_event(router: RouterServer) -> None:
    answer = await router.http.post(PATH, **form(stream="true", prompt="[[sim:drop after=3]]"))
    assert answer.status_code == 200
    assert '{"error":{' in answer.text.splitlines()[-2]
    assert "[DONE]" not in answer.text


async def test_an_error_event_is_an_error_of_the_client_library(client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(
        model="whisper", file=("a.wav", speech()), stream=True, prompt="[[sim:error after=3]]"
    )
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_a_client_that_leaves_cancels_the_work(router: RouterServer, whisper: SimulatedEngine) -> None:
    before = await whisper.stats()
    request = form(stream="true", prompt="[[sim:stall after=2]]")
    async with router.http.stream("POST", PATH, **request) as answer:
        async for _ in answer.aiter_bytes():
            break
    await whisper.stats(aborted=before["aborted"] + 1, in_flight=0)


async def test_openais_own_events_are_passed_on_until_the_last_one(scripted: ScriptedRouter) -> None:
    events = [
        b'data: {"type":"transcript.text.delta","delta":"Hi"}\n\n',
        b'data: {"type":"transcript.text.done","text":"Hi","usage":{"input_tokens":3,"output_tokens":1}}\n\n',
    ]
    router, _ = await scripted(*events)
    answer = await router.http.post(PATH, **form(model="llama", stream="true"))
    assert answer.content == b"".join(events)
    broken, _ = await scripted(events[0])
    assert "engine_failed" in (await broken.http.post(PATH, **form(model="llama", stream="true"))).text


async def test_a_large_file_is_passed_on_while_others_are_answered(
    router: RouterServer, whisper: SimulatedEngine
) -> None:
    large = form(bytes(range(256)) * 90_000)  # 23 MB
    answer, *others = await asyncio.gather(
        router.http.post(PATH, **large), *(router.http.post(PATH, **form(speech(level=n))) for n in range(5))
    )
    assert {answer.status_code, *(other.status_code for other in others)} == {200}
    assert answer.json()["usage"]["seconds"] == 720
