"""The promises of CachedEntry: derived data is computed once, and stays correct."""

import json
from typing import Any

import msgspec
import pytest

from router.core.cache.cache_key import CacheKey
from router.core.endpoints.chat import CHAT
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.recording.stream_encoding import encode_stream
from router.core.endpoints.requests.request import parse_request
from router.core.types import Entry
from router.store.cached_entry import MAX_CANONICAL_SIZE, CachedEntry
from router.store.local_cache import LocalCache

KEY = CacheKey("rh:1:default:m:0:0:0", ("what was asked",))
OTHER = CacheKey(KEY.text, ("what another asked",))
MESSAGE = {"role": "assistant", "content": "The sea."}
ANSWER = {"id": "c", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}], "usage": {"x": 1}}
ENTRY = Entry(
    digest=KEY.digest, body=json.dumps(ANSWER).encode(), stream=None, model="m", engine="e",
    task="chat", created=1000.0, ttl=60.0, prompt_tokens=1, completion_tokens=1, generation_ms=1,
)  # fmt: skip


def request_with(**fields: Any) -> InferenceRequest:
    return parse_request(CHAT, json.dumps({"model": "m", "messages": [MESSAGE], **fields}).encode())


EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"The sea."}}]}\n\n'
PARTS = StreamParts()
PARTS.append(EVENT)
STREAMED = msgspec.structs.replace(ENTRY, stream=encode_stream(PARTS, ENTRY.body, None, lossless=True))
FORMS = [request_with(), request_with(stream=True), request_with(stream=True, stream_options={"include_usage": True})]


def held(limit: int, entry: Entry = ENTRY) -> tuple[LocalCache, CachedEntry]:
    copy = LocalCache(limit, clock=lambda: 1000.0)
    copy.enable()
    copy.begin_fetch(KEY.text)(entry)
    stored = copy.get(KEY.text)
    assert stored is not None
    return copy, stored


def entry_in_local_cache() -> CachedEntry:
    return held(100_000)[1]


@pytest.mark.parametrize("stored", [CachedEntry(ENTRY), entry_in_local_cache()], ids=["fetched", "in-the-copy"])
def test_an_entry_matches_only_its_own_request_however_often_it_is_checked(stored: CachedEntry) -> None:
    keys = [CacheKey(key.text, key.canonical_parts) for key in (OTHER, KEY, OTHER, KEY)]
    assert [stored.matches(key) for key in keys] == [False, True, False, True]


def test_an_entry_verified_once_in_the_local_cache_needs_no_digest() -> None:
    stored = entry_in_local_cache()
    assert stored.matches(KEY)

    same = CacheKey(KEY.text, KEY.canonical_parts)
    assert stored.matches(same)
    assert same._digest == ""


@pytest.mark.parametrize("entry", [ENTRY, STREAMED], ids=["json", "streamed"])
@pytest.mark.parametrize("inference_request", FORMS, ids=["json", "stream", "usage"])
def test_a_repeated_hit_returns_the_first_rendering(inference_request: InferenceRequest, entry: Entry) -> None:
    _, stored = held(100_000, entry)
    replays = [stored.replay(one) for one in (inference_request, *FORMS, inference_request)]
    assert replays[0] == replays[-1] == replay(entry, inference_request)
    assert replays[0] is not None
    assert stored.replay(inference_request) is replays[0]


def test_data_attached_to_an_entry_counts_and_is_evicted_with_it() -> None:
    copy, stored = held(100_000)
    before = copy.size
    replayed = stored.replay(FORMS[1])
    assert replayed is not None
    stored.matches(KEY)
    stored.matches(KEY)
    assert copy.size == before + len(replayed) + KEY.size
    copy.invalidate([KEY.text])
    assert (copy.size, len(copy)) == (0, 0)
    stored.replay(FORMS[2])
    assert copy.size == 0, "it is no longer there"


def test_a_long_request_is_hashed_each_time_and_takes_no_space() -> None:
    long = CacheKey(KEY.text, ("x" * (MAX_CANONICAL_SIZE + 1),))
    copy, stored = held(100_000, msgspec.structs.replace(ENTRY, digest=long.digest))
    before = copy.size
    assert [stored.matches(key) for key in (long, KEY, long)] == [True, False, True]
    assert copy.size == before


def test_without_more_space_only_the_entry_remains() -> None:
    copy, stored = held(1500 + ENTRY.size)
    assert stored.replay(FORMS[1]) == replay(ENTRY, FORMS[1])
    assert stored.matches(KEY)
    assert (copy.size, len(copy)) == (1500 + ENTRY.size, 1)


def test_data_attached_to_an_entry_evicts_the_least_recently_used_one() -> None:
    copy, _ = held(2 * (1500 + ENTRY.size))
    copy.begin_fetch("other")(ENTRY)
    other = copy.get("other")
    assert other is not None
    other.replay(FORMS[1])
    assert (copy.get(KEY.text), copy.get("other")) == (None, other)


def test_a_rendering_that_would_evict_its_own_entry_takes_no_space() -> None:
    size = 1500 + ENTRY.size
    copy, stored = held(20 * size)
    for number in range(19):
        copy.begin_fetch(f"{KEY.text}{number}")(ENTRY)
    assert stored.replay(FORMS[1]) is not None
    assert copy.get(KEY.text) is None
    copy.invalidate_all()
    assert copy.size == 0
    copy.begin_fetch(KEY.text)(ENTRY)
    again = copy.get(KEY.text)
    assert again is not None
    before = copy.size
    replayed = again.replay(FORMS[1])
    assert replayed is not None
    assert copy.size == before + len(replayed)


def test_renderings_take_a_quarter_of_the_space_and_evict_no_entry() -> None:
    size = 1500 + ENTRY.size
    copy, _ = held(12 * size)
    names = [f"{KEY.text}{number}" for number in range(8)]
    for name in names:
        copy.begin_fetch(name)(ENTRY)
    for name in names:
        stored = copy.get(name)
        assert stored is not None
        stored.replay(FORMS[1])
        assert copy.size <= 9 * size + 3 * size
    assert len(copy) == 9
    newest, oldest = copy.get(names[-1]), copy.get(names[0])
    assert newest is not None
    assert oldest is not None
    assert newest.replay(FORMS[1]) is newest.replay(FORMS[1])
