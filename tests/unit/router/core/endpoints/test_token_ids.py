"""The ids of tokens are taken out of a stream; the client gets what it would have got without them."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.chat import CHAT
from router.core.endpoints.recording.recording import StreamRecorder
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.core.endpoints.requests.request import parse_request

REQUEST = parse_request(CHAT, b'{"model": "m", "stream": true, "messages": [{"role": "user", "content": "x"}]}')


def make_recorder() -> StreamRecorder:
    assert CHAT.streaming is not None
    recorder = CHAT.streaming.make_recorder(1 << 20, None)
    assert isinstance(recorder, StreamRecorder)
    return recorder


def event(delta: dict[str, Any], ids: list[int] | None, finish: str | None = None) -> bytes:
    """An event of a chat as vLLM 0.32 writes it."""
    choice: dict[str, Any] = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    if finish is not None:
        choice["stop_reason"] = None
    choice["token_ids"] = ids
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: %b\n\n" % json.dumps(chunk, separators=(",", ":")).encode()


def call(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]}


TEXTS = ["a", "", '"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[1]', "\n\n"]


@given(
    st.lists(st.tuples(st.sampled_from([None, *TEXTS]), st.lists(st.integers(0, 9), max_size=3)), max_size=6),
    st.lists(st.booleans(), min_size=1, max_size=3),
    st.integers(0, 6),
)
def test_events_only_for_their_ids_are_left_out_wherever_chunks_end(
    events: list[tuple[str | None, list[int]]], ends: list[bool], words: int
) -> None:
    """`None`: a parser keeps the tokens to itself, and vLLM would send no event without `return_token_ids`.

    `words`: events of the content; after them come arguments of a call.
    """
    deltas: list[tuple[dict[str, Any], list[int]]] = [
        ({} if text is None else {"content": text} if number < words else call(text), ids)
        for number, (text, ids) in enumerate(events)
    ]
    expected = b"".join(event(delta, None) for delta, _ in deltas if delta) + event({}, None, "stop")
    cutter = TokenIdCutter()
    received = chunk = b""
    for number, (delta, ids) in enumerate(deltas):
        chunk += event(delta, ids)
        if ends[number % len(ends)]:
            received += cutter.cut(chunk)
            chunk = b""
    received += cutter.cut(chunk + event({}, [2], "stop"))
    assert received == expected
    assert len(cutter.pieces) == sum(bool(delta) for delta, _ in deltas) + 1, "one for each event of the client"
    ids_of_all = [number for _, ids in events for number in ids] + [2]
    assert [int(number) for piece in cutter.pieces for number in piece.split(b",") if number] == ids_of_all


def test_an_event_after_one_that_was_left_out_has_several_tokens() -> None:
    """So the response is not continued from it: its text may end inside of a character of the tokens before it."""
    cutter = TokenIdCutter()
    cutter.cut(event({"content": "a"}, [1]) + event({}, [2]))
    assert cutter.pieces == [b"1"]
    cutter.cut(event({"content": "b"}, [3]))
    assert cutter.pieces == [b"1", b"2,3"]


def test_what_was_left_out_before_a_seam_is_forgotten_at_it() -> None:
    cutter = TokenIdCutter()
    cutter.cut(event({"content": "a"}, [1]) + event({}, [2]))
    cutter.keep(1, 1)
    cutter.cut(event({"content": "b"}, [3]))
    assert cutter.pieces == [b"1", b"3"]


@given(st.data())
def test_a_recorder_takes_the_ids_out_of_events_of_a_template_as_of_all_others(data: st.DataObject) -> None:
    """Events of a template are not searched from their beginning."""
    texts = (*TEXTS, "b", "é", '"', "\\")
    deltas = [{}, *({"content": text} for text in texts), *map(call, texts), {"content": "c", "reasoning": "d"}]
    drawn = data.draw(st.lists(st.sampled_from(deltas), min_size=3, max_size=12))
    ids = st.lists(st.integers(0, 99_999), max_size=3)
    events = [event({"role": "assistant", "content": ""}, None)]
    malformed = data.draw(st.sampled_from([b"b", b"\n", b"\n\n", b'b"']))
    events += [event(delta, data.draw(ids)) for delta in [{"content": "a"}, *drawn]]
    events = [each.replace(b'"b"', b'"%b"' % malformed) for each in events]
    if data.draw(st.booleans()):  # then each event is decoded
        events = [each.replace(b'"choices"', b'"usage":null,"choices"') for each in events]
    events += [event({"content": "."}, [2], "stop"), DONE]
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    recorder, expected, cutter = make_recorder(), make_recorder(), TokenIdCutter()
    recorder.token_ids = TokenIdCutter()
    received = wanted = b""
    for size in itertools.cycle(sizes):
        chunk, events = b"".join(events[:size]), events[size:]
        received += recorder.feed(chunk)
        wanted += expected.feed(cutter.cut(chunk))
        if not events or expected.failure is not None:
            break
    assert received == wanted
    assert recorder.token_ids.pieces == cutter.pieces
    assert recorder.recorded_response(REQUEST) == expected.recorded_response(REQUEST)
