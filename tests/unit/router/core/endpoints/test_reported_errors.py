"""Each form in which engines report an error in a stream is read at each endpoint, wherever it stands."""

import json
from itertools import product

import pytest

from router.core.endpoints.audio import TRANSCRIPTIONS
from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.errors.engine_errors import parse_reported_error
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.responses import RESPONSES
from tests.support.endpoints import make_recorder

FLAT = json.dumps({"code": 400, "message": "Too long.", "type": "invalid_request_error"}).encode()
OBJECT = json.dumps({"object": "error", "message": "Too long.", "type": "BadRequestError", "code": 400}).encode()
FORMS = {
    "openai": b'data: {"error": %b}\n\n' % FLAT,
    "openai, with a name": b'event: error\ndata: {"error": %b}\n\n' % FLAT,
    "anthropic": b'event: error\ndata: {"type": "error", "error": %b}\n\n' % FLAT,
    "anthropic, flat": b'data: {"type": "error", "code": 400, "message": "Too long."}\n\n',
    "vllm 0.9": b"data: %b\n\n" % OBJECT,
    "vllm 0.9, with a name": b"event: error\ndata: %b\n\n" % OBJECT,
    "llama.cpp, by name": b"event: error\ndata: %b\n\n" % FLAT,
    "llama.cpp, by name, CR LF": b"event: error\r\ndata: %b\r\n\r\n" % FLAT,
    "by name after the data": b"data: %b\nevent: error\n\n" % FLAT,
    "by name after the data, CR LF and LF": b"data: %b\r\nevent:error\n\r\n" % FLAT,
    "by field beside data": b"data: {}\nerror: %b\n\n" % FLAT,
    "llama.cpp, by field": b"error: %b\n\n" % FLAT,
    "by field without a blank": b"error:%b\n\n" % FLAT,
    "by field, CR LF": b"error: %b\r\n\r\n" % FLAT,
}
CHAT_TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'
TOKENS = {
    CHAT: CHAT_TOKEN,
    TRANSCRIPTIONS: CHAT_TOKEN,
    COMPLETIONS: b'data: {"choices":[{"index":0,"text":"%b"}]}\n\n',
    RESPONSES: b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"%b"}\n\n',
    MESSAGES: b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta",'
    b'"text":"%b"}}\n\n',
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_reported_error_ends_the_stream_and_has_its_status(form: bytes) -> None:
    for (endpoint, token), tokens, together in product(TOKENS.items(), (0, 1, 3), (False, True)):
        case = f"{endpoint.path}, after {tokens} tokens, {'in one chunk' if together else 'in a chunk of its own'}"
        recorder = make_recorder(endpoint, 10_000)
        events = [token % text for text in (b"a", b"b", b"c")[:tokens]]
        chunks = [b"".join([*events, form])] if together else [*events, form]
        assert b"".join(map(recorder.feed, chunks)) == b"".join(events), case
        assert recorder.failure is not None, case
        reported = parse_reported_error(recorder.failure)
        assert (reported.status, reported.summary) == (400, "Too long."), case
        assert reported.refusal is not None, case


@pytest.mark.parametrize("field", [b"error: ", b"event: error\ndata: "])
def test_an_error_by_field_at_the_end_of_a_body_needs_no_empty_line_and_must_be_whole(field: bytes) -> None:
    recorder = make_recorder(CHAT, 10_000)
    assert recorder.feed(field + FLAT) == b""
    assert recorder.error_at_end() == FLAT
    recorder = make_recorder(CHAT, 10_000)
    assert recorder.feed(field + FLAT[:-1]) == b""
    assert recorder.error_at_end() is None


@pytest.mark.parametrize(
    "event", [b"data: error\n\n", b"event: errors\ndata: 1\n\n", b": error: x\n\n", b"id: error\n\n"]
)
def test_the_word_error_elsewhere_reports_none(event: bytes) -> None:
    recorder = make_recorder(TRANSCRIPTIONS, 10_000)
    recorder.feed(event)
    assert recorder.failure in (None, b"an event was not JSON")
