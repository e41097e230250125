"""A completion of ids becomes the rest of a chat, by what the engine's parser makes of all tokens."""

import json
from typing import Any

import pytest

from router.core.endpoints.continuation.derendered_chat import DerenderedChat
from router.core.endpoints.continuation.published_events import PublishedCall
from router.core.endpoints.continuation.stream_so_far import StreamSoFar
from router.core.endpoints.recording.recording import MAX_EVENT_SIZE
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

HEAD = {"id": "first", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5}}\n\n'
DONE = b"data: [DONE]\n\n"
BEGUN = PublishedCall(0, "look", '{"at"')
WHOLE = ("look", '{"at": "sea"}')


def new_chat(text: str = "I look.", *calls: PublishedCall, one_call: bool = False) -> DerenderedChat:
    so_far = StreamSoFar(
        text=text, finish_reason=None, tokens=3, counted=True, text_tokens=3, text_pieces=3, prompt_tokens=2,
        has_reasoning=False, prompt_ids=b"7,8,1,2,3", settled_tokens=3, settled_pieces=3, published_pieces=3,
        unsettled="", calls=list(calls), generated_ids=b"1,2,3", head={**HEAD, "system_fingerprint": "f"},
    )  # fmt: skip
    return DerenderedChat(b'{"tools":[]}', b"7,8", so_far, one_call=one_call)


def event(ids: list[int] | None, finish: str | None = None, stop: int | str | None = None) -> bytes:
    choice = {"index": 0, "text": "raw", "finish_reason": finish, "stop_reason": stop, "token_ids": ids}
    return b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode()


def parsed(content: str | None, *calls: tuple[str, str]) -> bytes:
    tools = [{"id": f"new-{name}", "function": {"name": name, "arguments": text}} for name, text in calls]
    message = {"role": "assistant", "content": content, "reasoning": None, "tool_calls": tools}
    return json.dumps({"id": "x", "choices": [{"index": 0, "message": message}]}).encode()


def request(chat: DerenderedChat) -> dict[str, Any]:
    body = chat.request()
    assert body is not None
    asked: dict[str, Any] = json.loads(body)
    return asked


def rest(chat: DerenderedChat, reply: bytes) -> list[dict[str, Any]]:
    """The choices of its events."""
    data = chat.rest(reply)
    assert data is not None
    events = [json.loads(each.removeprefix(b"data: ")) for each in data.removesuffix(DONE).split(b"\n\n") if each]
    assert all({name: value for name, value in each.items() if name != "choices"} == HEAD for each in events)
    return [each["choices"][0] for each in events]


def ended(chat: DerenderedChat, finish: str = "stop") -> DerenderedChat:
    chat.feed(event([4, 5]) + event([6], finish) + DONE)
    assert chat.is_over
    return chat


@pytest.mark.parametrize(
    ("finish", "stop", "ids"),
    [("stop", None, [4, 5]), ("stop", 6, [4, 5]), ("stop", "text", [4, 5, 6]), ("length", None, [4, 5, 6])],
)
def test_the_parser_gets_all_tokens_but_the_one_that_ends_the_response(
    finish: str, stop: int | str | None, ids: list[int]
) -> None:
    chat = new_chat()
    chat.feed(event([4]) + event([5, 6])[:9])
    chat.feed(event([5, 6], finish, stop)[9:])
    assert not chat.is_over
    chat.feed(DONE)
    response = {"prompt_token_ids": [7, 8], "choices": [{"index": 0, "token_ids": [1, 2, 3, *ids]}]}
    assert request(chat) == {"generate_response": response, "chat_request": {"tools": []}}


def test_the_client_gets_the_rest_of_a_begun_call_and_the_next_calls() -> None:
    chat = new_chat("I look.\n", BEGUN)
    text, end = rest(ended(chat), parsed("I look.", WHOLE, ("find", "{}")))
    assert text["delta"] == {
        "tool_calls": [
            {"index": 0, "function": {"arguments": ': "sea"}'}},
            {"id": "new-find", "type": "function", "index": 1, "function": {"name": "find", "arguments": "{}"}},
        ]
    }
    assert end == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls", "stop_reason": None,
        "token_ids": [4, 5, 6],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("said", "whole", "more"),
    [("I ", "I look.", "look."), ("\n\nI ", "I look.", "look."), ("I look. \n", "I look.", None), ("", None, None)],
)
def test_the_client_gets_the_rest_of_a_text(said: str, whole: str | None, more: str | None) -> None:
    choices = rest(ended(new_chat(said)), parsed(whole, WHOLE))
    assert choices[0]["delta"].get("content") == more
    assert [choice["finish_reason"] for choice in choices] == [None, "tool_calls"]


def test_a_response_without_calls_keeps_its_finish_reason() -> None:
    for reason in ("stop", "length"):
        (_, end) = rest(ended(new_chat("I "), reason), parsed("I see."))
        assert end["finish_reason"] == reason


@pytest.mark.parametrize(
    ("said", "whole", "arguments"),
    [
        ('{"at":"sea', '{"at": "sea side", "n": [1, 2]}', '{"at":"sea side","n":[1,2]}'),
        ('{"at": "caf\u00e9', '{"at": "caf\\u00e9 \\ud83c\\udf0a"}', '{"at": "caf\u00e9 \U0001f30a"}'),
        ('{"at":"\\u00e9\\/', '{"at": "\u00e9/b"}', '{"at":"\\u00e9\\/b"}'),
        ('{"at":"a\\', '{"at": "a\\nb"}', '{"at":"a\\nb"}'),
        ('{"at":"a\\\\u00e9 "', '{"at": "a\\\\u00e9 "}', '{"at":"a\\\\u00e9 "}'),
        (' {"at": 1}\n', '{"at": 1}', ' {"at": 1}\n'),
        ("{ }", "{}", "{ }"),
    ],
)
def test_a_parser_may_write_arguments_otherwise_than_a_stream(said: str, whole: str, arguments: str) -> None:
    choices = rest(ended(new_chat("", PublishedCall(0, "look", said))), parsed(None, ("look", whole)))
    more = [call["function"]["arguments"] for choice in choices for call in choice["delta"].get("tool_calls", ())]
    assert said + "".join(more) == arguments


@pytest.mark.parametrize(
    ("said", "whole"),
    [('{"at":"a b', '{"at": "ab"}'), ('{"at":"\\ud83c', '{"at": "\U0001f30a"}'), ('{"n":1e3', '{"n": 1000.0}')],
)
def test_arguments_that_mean_something_else_diverge(said: str, whole: str) -> None:
    chat = ended(new_chat("", PublishedCall(0, "look", said)))
    assert chat.rest(parsed(None, ("look", whole))) is None


def test_a_client_that_wants_one_call_gets_no_further_one() -> None:
    (text, _) = rest(ended(new_chat("", BEGUN, one_call=True)), parsed(None, WHOLE, ("find", "{}")))
    assert [call["index"] for call in text["delta"]["tool_calls"]] == [0]


@pytest.mark.parametrize(
    "reply",
    [
        parsed("I see.", WHOLE),
        parsed("I look."),
        parsed("I look.", ("find", '{"at": "sea"}')),
        parsed("I look.", ("look", '{"in": "sea"}')),
    ],
)
def test_a_parser_that_reads_something_else_than_the_client_has_diverges(reply: bytes) -> None:
    assert ended(new_chat("I look.", BEGUN)).rest(reply) is None


@pytest.mark.parametrize("content", ["I look.", 'I look.\n<tool_call>{"name": "look", "arguments": {"at"', None])
def test_a_call_that_the_limit_cuts_off_ends_where_it_is(content: str | None) -> None:
    (end,) = rest(ended(new_chat("I look.", BEGUN), "length"), parsed(content))
    assert (end["delta"], end["finish_reason"]) == ({}, "length")


def test_an_argument_that_the_limit_cuts_off_may_be_left_out_by_the_parser() -> None:
    begun = PublishedCall(0, "look", '{"at": "sea", "for": "gul')
    (end,) = rest(ended(new_chat("", begun), "length"), parsed(None, ("look", '{"at": "sea"}')))
    assert (end["delta"], end["finish_reason"]) == ({}, "length")
    assert ended(new_chat("", begun)).rest(parsed(None, ("look", '{"at": "sea"}'))) is None
    for other in (("find", "{}"), ("look", "{}")):
        assert ended(new_chat("", begun), "length").rest(parsed(None, other, WHOLE)) is None


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_a_response_that_is_cut_off_is_not_parsed(reason: str) -> None:
    chat = new_chat()
    chat.feed(event([4], reason) + DONE)
    assert (chat.is_over, chat.request()) == (True, None)
    data = chat.rest(None)
    assert data is not None
    assert json.loads(data.removeprefix(b"data: "))["choices"][0]["finish_reason"] == reason


def test_an_error_event_and_the_usage_pass() -> None:
    error = b'event: error\ndata: {"error":{"message":"gone"}}\n\n'
    chat = new_chat()
    chat.feed(event([4]) + error + event([5]))
    assert (chat.is_over, chat.request(), chat.rest(None)) == (True, None, error)
    chat = new_chat()
    chat.feed(event([4], "stop") + USAGE + DONE)
    data = chat.rest(parsed("I look."))
    assert data is not None
    assert data.endswith(USAGE + DONE)


@pytest.mark.parametrize(
    "data",
    [
        event(None),  # an engine that does not know return_token_ids
        event([4], "stop") + event([5]),
        b'data: {"choices":[{"token_ids":["a"]}]}\n\n',
        b'data: {"choices":[{"token_ids":[1]},{"token_ids":[2]}]}\n\n',
        b"data: {\n\n",
        b"data: " + b" " * MAX_EVENT_SIZE,
    ],
    ids=range(6),
)
def test_what_is_no_completion_with_ids_is_malformed(data: bytes) -> None:
    with pytest.raises(MALFORMED_RESPONSE_ERRORS):
        new_chat().feed(data)


@pytest.mark.parametrize("reply", [b"{", b"{}", b'{"choices":[]}', parsed("a")[:-1]])
def test_a_reply_of_another_form_is_malformed(reply: bytes) -> None:
    with pytest.raises(MALFORMED_RESPONSE_ERRORS):
        ended(new_chat()).rest(reply)
