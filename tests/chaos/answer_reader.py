"""Parses an answer of any endpoint, as JSON or as events: its text, its ids, its finish reason, its usage."""

import json
import re
from typing import Any, Final, NamedTuple

from tests.chaos.workload import EMBEDDINGS, MESSAGES, RESPONSES
from tests.support.sse_answers import chat_delta_text as text_of_choices
from tests.support.typed_answers import typed_delta_text as text_of_typed

_LOST: Final = "its router process is gone"
_DONE: Final = b"data: [DONE]"
_FINISHED: Final = ("stop", "completed", "end_turn")  # finish reasons of complete answers
_UNFINISHED: Final = (None, "in_progress")


class ParsedAnswer(NamedTuple):
    """The content of an answer.

    - `text`: of an embedding, the name of its generation, which its first numbers encode.
    - `ids`: all ids in it. `finished`: whether it ended regularly; None if it has no finish reason.
    - `usage_count`: how often it has the usage. `flaws`: what is wrong with its form.
    """

    text: str
    ids: set[str]
    finished: bool | None
    usage_count: int
    flaws: list[str]


class ParsedStream(NamedTuple):
    """What arrived of a stream. `done`: it has its end; `error_code`: the code or type of an error at its end."""

    answer: ParsedAnswer
    done: bool
    error_code: str | None
    last: bytes


def parse_json_answer(path: str, answer: Any) -> ParsedAnswer:
    """Raises KeyError, ValueError, IndexError or TypeError for anything that is not an answer of that endpoint."""
    usage = answer["usage"]
    match path:
        case "/v1/responses":
            parts = [part for item in answer["output"] for part in item["content"]]
            text, reason, used = "".join(part["text"] for part in parts), answer["status"], usage["output_tokens"]
        case "/v1/messages":
            text, reason = "".join(part["text"] for part in answer["content"]), answer.get("stop_reason")
            used = usage["output_tokens"]
        case "/v1/embeddings":
            (item,) = answer["data"]
            text = "".join(f"{int(number):04x}" for number in item["embedding"][:3])
            reason, used = "stop", usage["prompt_tokens"]
        case _:
            (choice,) = answer["choices"]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
            reason, used = choice["finish_reason"], usage["completion_tokens"]
    return ParsedAnswer(text, {answer["id"]}, _is_finished(reason), int(used > 0), [])


def parse_stream(path: str, body: bytes) -> ParsedStream:
    """Raises as `parse_json_answer` does; a truncated last event is ignored."""
    frames = [frame for frame in re.findall(rb"(.*?)\n\n", body, re.DOTALL) if not frame.startswith(b":")]  # heartbeats
    last = frames[-1] if frames else b""
    if path in (RESPONSES, MESSAGES):
        return _typed_stream(path, frames, last)
    done = last == _DONE
    events = [_event(frame) for frame in (frames[:-1] if done else frames)]
    error_code = _error_code(events)
    return ParsedStream(parse_events(path, events[:-1] if error_code is not None else events), done, error_code, last)


def _typed_stream(path: str, frames: list[bytes], last: bytes) -> ParsedStream:
    events = [_event(frame) for frame in frames]
    error_code = _error_code(events)
    done = bool(events) and events[-1]["type"] in ("response.completed", "response.incomplete", "message_stop")
    return ParsedStream(parse_events(path, events[:-1] if error_code is not None else events), done, error_code, last)


def _error_code(events: list[dict[str, Any]]) -> str | None:
    error = events[-1].get("error") if events else None
    if error is None:
        return None
    if _LOST in error["message"]:  # Anthropic's errors have no code
        return "lost"
    return str(error.get("code") or error["type"])


def parse_events(path: str, events: list[dict[str, Any]]) -> ParsedAnswer:
    """The content of a stream's events, except an error."""
    match path:
        case "/v1/responses":
            return _of_responses(events)
        case "/v1/messages":
            return _of_messages(events)
    choices = [choice for event in events for choice in event["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    usage_events = [event for event in events if not event["choices"]]
    flaws = [f"it ended {len(reasons)} times"] if len(reasons) > 1 else []
    if usage_events != events[len(events) - len(usage_events) :]:
        flaws.append("it has the usage before its end")
    ids = {event["id"] for event in events}
    return ParsedAnswer(
        text_of_choices(events), ids, _is_finished(reasons[-1] if reasons else None), len(usage_events), flaws
    )


def _of_responses(events: list[dict[str, Any]]) -> ParsedAnswer:
    responses = [event["response"] for event in events if "response" in event]
    text, flaws = text_of_typed(events), []
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        flaws.append(f"its events are numbered {[event['sequence_number'] for event in events]}")
    last = responses[-1] if responses else {}
    if last.get("usage") is not None and parse_json_answer(RESPONSES, last).text != text:
        flaws.append("its last event differs from the others")
    return ParsedAnswer(
        text,
        {response["id"] for response in responses},
        _is_finished(last.get("status")),
        int(bool(last.get("usage"))),
        flaws,
    )


def _of_messages(events: list[dict[str, Any]]) -> ParsedAnswer:
    ids = [event["message"]["id"] for event in events if event["type"] == "message_start"]
    deltas = [event for event in events if event["type"] == "message_delta"]
    flaws = [f"it began {len(ids)} times"] if events and len(ids) != 1 else []
    reason = deltas[-1]["delta"]["stop_reason"] if deltas else None
    return ParsedAnswer(text_of_typed(events), set(ids), _is_finished(reason), len(deltas), flaws)


def _event(frame: bytes) -> Any:
    """Raises ValueError for anything else."""
    *names, data = frame.split(b"\n")
    if not data.startswith(b"data: "):
        raise ValueError(f"no event: {frame!r}")
    event = json.loads(data.removeprefix(b"data: "))
    if names and names != [b"event: " + str(event["type"]).encode()]:
        raise ValueError(f"an event of two types: {frame!r}")
    return event


def _is_finished(reason: str | None) -> bool | None:
    return None if reason in _UNFINISHED else reason in _FINISHED


def always_sends_usage(path: str) -> bool:
    """Whether its streams have the usage without asking for it."""
    return path in (RESPONSES, MESSAGES, EMBEDDINGS)
