"""/v1/audio/transcriptions and /v1/audio/translations, with openai-python and with bytes."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from router.api.access.auth import hash_key
from tests.support.raw_http import connect
from tests.support.router_server import router_config
from tests.support.speech_forms import form, speech
from tests.support.waiting import eventually
from tests.world.http import PORT
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World, scenario
from tests.world.scripted import scripted_router

WHISPER = "openai/whisper-simulated"
PATH, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"


def config(world: World, *urls: str, router: str = "", rest: str = "") -> str:
    engines = "".join(
        f'[[engine]]\nname = "whisper-{number}"\nmodel = "whisper"\nurl = "{url}"\nserved_model = "{WHISPER}"\n'
        for number, url in enumerate(urls)
    )
    return (
        f'[router]\ndrain = "0s"\n{router}\n[cache]\nurl = "{world.redis.url}"\ntimeout = "2500ms"\n'
        f'[[model]]\nname = "whisper"\naliases = ["whisper-1"]\n{engines}{rest}'
    )


async def start(world: World, **options: str) -> tuple[WorldRouter, WorldEngine]:
    engine = await whisper(world)
    return await world.router(config(world, engine.url, **options)), engine


async def whisper(world: World) -> WorldEngine:
    return await world.engine(WHISPER, speech=True, max_model_len=448)


def sdk(router: WorldRouter) -> openai.AsyncOpenAI:
    http: Any = router.http  # the library wants its own fork of httpx
    return openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, http_client=http)


@scenario
async def test_openais_client_gets_what_the_engine_says(world: World) -> None:
    router, engine = await start(world)
    client = sdk(router)
    file = speech()
    answer = await client.audio.transcriptions.create(
        model="whisper-1", file=("speech.wav", file), language="en", prompt="[[sim:say text=Good%20morning.]]"
    )
    assert answer.text == "Good morning."
    assert answer.to_dict()["usage"] == {"type": "duration", "seconds": 2}
    # Not `translations.create`, which the library calls deprecated.
    request = form(file, prompt="[[sim:say text=Good%20day.]]")
    assert (await router.http.post(TRANSLATE, **request)).json() == {"text": "Good day."}
    (*_, first, second) = (await engine.stats())["requests"]
    assert (first["path"], second["path"]) == (PATH, TRANSLATE)
    assert f'name="model"\r\n\r\n{WHISPER}\r\n' in first["body"]
    assert 'name="language"\r\n\r\nen\r\n' in first["body"]


@scenario
async def test_a_file_reaches_the_engine_byte_for_byte(world: World) -> None:
    router, engine = await start(world)
    for file in (speech(), b"\r\n", b"--", bytes(range(256)) * 100, b"\r\n--\r\n" * 5000):
        through = await router.http.post(PATH, **form(file))
        direct = await router.http.post(f"{engine.url}{PATH}", **form(file, model=WHISPER))
        assert through.json() == direct.json()  # the transcript is a function of the file's bytes


@scenario
async def test_a_form_without_a_model_is_for_the_only_one(world: World) -> None:
    router, engine = await start(world)
    direct = await router.http.post(f"{engine.url}{PATH}", **form(model=WHISPER))
    named_none = form()
    del named_none["data"]["model"]
    for request in (named_none, form(model="")):
        through = await router.http.post(PATH, **request)
        assert (through.status_code, through.json()) == (200, direct.json())


@scenario
async def test_openais_client_streams(world: World) -> None:
    router, _ = await start(world)
    client = sdk(router)
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


@scenario
async def test_a_stream_is_what_the_engine_sends(world: World) -> None:
    router, engine = await start(world)
    request = form(stream="true", prompt="[[sim:say text=one%20two]]")
    through = await router.http.post(PATH, **request)
    request["data"]["model"] = WHISPER
    direct = await router.http.post(f"{engine.url}{PATH}", **request)
    assert through.headers["content-type"] == "text/event-stream; charset=utf-8"

    def without_ids(answer: httpx.Response) -> list[str]:
        return [line.partition('"model"')[2] or line for line in answer.text.splitlines()]

    assert without_ids(through) == without_ids(direct)
    assert through.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", ["false", "true"])
@scenario
async def test_nothing_is_looked_up_stored_or_shared(world: World, stream: str) -> None:
    router, engine = await start(world)
    before = (await engine.stats())["started"]
    answers = await asyncio.gather(*(router.http.post(PATH, **form(stream=stream, temperature="0")) for _ in range(3)))
    for answer in answers:
        assert (answer.status_code, answer.headers["x-cache"]) == (200, "BYPASS")
        assert answer.headers["x-cache-reason"] == "uncacheable"
        assert "x-cache-key" not in answer.headers
        assert answer.headers["x-engine"] == "whisper-0"
    assert (await engine.stats())["started"] == before + 3
    assert [key async for key in world.redis.client.scan_iter("rh:1:default:*")] == []
    only_cached = await router.http.post(PATH, **form(), headers={"cache-control": "only-if-cached"})
    assert (only_cached.status_code, only_cached.json()["error"]["code"]) == (504, "not_cached")


@scenario
async def test_a_response_that_is_not_json_keeps_its_content_type(world: World) -> None:
    subtitles = b"1\n00:00:00,000 --> 00:00:01,000\nHello\n"
    for sent, received in [
        ("text/plain; charset=utf-8", "text/plain; charset=utf-8"),
        ("application/x-subrip", "application/x-subrip"),
        ("text/vtt", "text/vtt"),
        ("x" * 500, "application/json"),
        ("text/html; a=<script>", "application/json"),
    ]:
        router, _ = await scripted_router(world, subtitles, content_type=sent)
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
@scenario
async def test_a_wrong_request_is_refused_with_its_reason(
    world: World, fields: dict[str, str], status: int, said: str
) -> None:
    router, _ = await start(world)
    answer = await router.http.post(PATH, **form(**fields))
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


@scenario
async def test_a_request_without_a_usable_form_is_refused(world: World) -> None:
    router, _ = await start(world)
    as_json = await router.http.post(PATH, json={"model": "whisper"})
    assert (as_json.status_code, as_json.json()["error"]["code"]) == (415, "unsupported_media_type")
    no_file = await router.http.post(PATH, files={"model": (None, "whisper")})
    assert (no_file.status_code, no_file.json()["error"]["param"]) == (400, "file")
    text_file = await router.http.post(PATH, files={"model": (None, "whisper"), "file": (None, "x")})
    assert (text_file.status_code, text_file.json()["error"]["param"]) == (400, "file")
    cut = await router.http.post(PATH, content=b"--b\r\n", headers={"content-type": "multipart/form-data; boundary=b"})
    assert (cut.status_code, cut.json()["error"]["code"]) == (400, "invalid_form")


@scenario
async def test_an_engine_without_the_endpoint_is_told_as_such(world: World) -> None:
    engine = await world.engine()
    router = await world.router(router_config(world.redis.url, {"one": ("llama", "any", engine.url)}))
    answer = await router.http.post(PATH, **form(model="llama"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_endpoint")


@scenario
async def test_audio_has_a_bound_of_its_own(world: World) -> None:
    limits = 'max_body = "1KiB"\nmax_audio = "64KiB"\nmax_bodies = "96KiB"'
    router, _ = await start(world, router=limits)
    assert (await router.http.post(PATH, **form(speech(1.5)))).status_code == 200
    large = await router.http.post(PATH, **form(speech(3)))
    assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
    async with connect(PORT, host=router.name) as connection:
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


async def _holds(router: WorldRouter, size: int) -> bool:
    return bool(router.application._process_state.body_budget.allocated == size)


@scenario
async def test_a_key_is_required_and_limits_hold(world: World) -> None:
    keys = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"key")}"]\nrequests_per_minute = 1\n'
    router, _ = await start(world, rest=f"{keys}tokens_per_minute = 20000\n")
    assert (await router.http.post(PATH, **form())).status_code == 401
    key = {"authorization": "Bearer key"}
    first = await router.http.post(PATH, **form(speech(20)), headers=key)
    second = await router.http.post(PATH, **form(), headers=key)
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["error"]["type"] == "requests"
    # 640 KB of audio are not counted as text.
    assert int(second.headers["x-ratelimit-remaining-tokens"]) > 19_000


@pytest.mark.parametrize("stream", ["false", "true"])
@scenario
async def test_an_engine_that_fails_before_the_first_byte_is_replaced(world: World, stream: str) -> None:
    failing, other = await whisper(world), await whisper(world)
    router = await world.router(config(world, failing.url, other.url, rest="[breaker]\nfailures = 100"))
    faults: list[dict[str, object]] = [{"fault": "drop"}, {"fault": "malformed"}, {"fault": "status", "code": 503}]
    for fault in faults:
        await failing.set_faults(fault)
        answer = await router.http.post(PATH, **form(stream=stream))
        assert (answer.status_code, answer.headers["x-engine"]) == (200, "whisper-1"), fault
    metrics = await router.metrics()
    assert sum(count for name, count in metrics.items() if name.startswith('llm_retries_total{engine="whisper-0"')) == 3


@scenario
async def test_a_stream_that_breaks_off_ends_with_an_error_event(world: World) -> None:
    router, _ = await start(world)
    answer = await router.http.post(PATH, **form(stream="true", prompt="[[sim:drop after=3]]"))
    assert answer.status_code == 200
    assert '{"error":{' in answer.text.splitlines()[-2]
    assert "[DONE]" not in answer.text


@scenario
async def test_an_error_event_is_an_error_of_the_client_library(world: World) -> None:
    router, _ = await start(world)
    client = sdk(router)
    stream = await client.audio.transcriptions.create(
        model="whisper", file=("a.wav", speech()), stream=True, prompt="[[sim:error after=3]]"
    )
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


@scenario
async def test_a_client_that_leaves_cancels_the_work(world: World) -> None:
    router, engine = await start(world)
    before = await engine.stats()
    request = form(stream="true", prompt="[[sim:stall after=2]]")
    async with router.http.stream("POST", PATH, **request) as answer:
        async for _ in answer.aiter_bytes():
            break
    await engine.stats(aborted=before["aborted"] + 1, in_flight=0)


@scenario
async def test_openais_own_events_are_passed_on_until_the_last_one(world: World) -> None:
    events = [
        b'data: {"type":"transcript.text.delta","delta":"Hi"}\n\n',
        b'data: {"type":"transcript.text.done","text":"Hi","usage":{"input_tokens":3,"output_tokens":1}}\n\n',
    ]
    router, _ = await scripted_router(world, *events)
    answer = await router.http.post(PATH, **form(model="llama", stream="true"))
    assert answer.content == b"".join(events)
    broken, _ = await scripted_router(world, events[0])
    assert "engine_failed" in (await broken.http.post(PATH, **form(model="llama", stream="true"))).text
