"""Turns the events of the engine that goes on with a stream into events of the stream that the client reads.

They have the id, the time and the names of the first engine's events, no second role, and the usage of the whole.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.event_forms import EMPTY_VALUES
from router.core.endpoints.continuation.second_stream import SecondChoiceStream
from router.core.endpoints.continuation.stream_so_far import StreamSoFar
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recording import ABORTED
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.recording.usage import parse_token_count

DIVERGED: Final = b"the continuation does not repeat what was published"
"""The `failure` if the second engine generates another text than the one that the client has, or reasoning."""

_encode = msgspec.json.Encoder().encode
_HEAD_FIELDS: Final = ("id", "created", "model")
_OWN_FIELDS: Final = ("prompt_token_ids", "prompt_text", "metrics")
_TEXT_FIELDS: Final = ("role", "content", "text")


class ContinuedRecorder(SecondChoiceStream):
    """A Recorder of an engine that goes on where the first one broke off.

    The text that is generated again (`StreamSoFar.unsettled`) is compared and left out. So are events without text
    before anything new: the role, and tokens that end inside a character.
    """

    def __init__(
        self, recorder: ChoicesRecorder, stream_format: ChoicesFormat, so_far: StreamSoFar, *, by_ids: bool,
        other_fields: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """`stream_format`: of the client's stream. `by_ids`: see router.core.endpoints.continuation.stream_so_far.

        `other_fields`: what deltas may have besides text.
        """
        super().__init__(recorder)
        self._format = stream_format
        self._so_far = so_far
        self._by_ids = by_ids
        self._other_fields = other_fields
        self._known_fields = (*_TEXT_FIELDS, *other_fields)
        self._repeated = so_far.unsettled if by_ids else ""
        self._carried_ids: list[Any] = []  # of events that were left out
        self._generated_before = so_far.settled_tokens if by_ids else so_far.text_tokens

    def _join(self) -> None:
        self._recorder.resume()
        ids = self._recorder.token_ids
        if ids is not None:
            so_far = self._so_far
            ids.keep(so_far.settled_pieces if self._by_ids else so_far.text_pieces, so_far.published_pieces)
            ids.exact = ids.exact and self._by_ids

    def _rewrite_choice(self, event: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any] | None:
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else {"text": choice.get("text")}
        text = fields.get("content") or fields.get("text") or ""
        if not isinstance(text, str) or any(
            value not in EMPTY_VALUES for name, value in fields.items() if name not in self._known_fields
        ):
            self.failure = DIVERGED  # such as reasoning
            return None
        reason = choice.get("finish_reason")
        if reason == "abort":
            self.failure = ABORTED
            return None
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._carried_ids += ids
        if self._repeated:
            length = min(len(text), len(self._repeated))
            if text[:length] != self._repeated[:length] or (reason is not None and length < len(self._repeated)):
                self.failure = DIVERGED
                return None
            self._repeated, text = self._repeated[length:], text[length:]
        if text or reason is not None or any(map(fields.get, self._other_fields)):
            self.started = True
        elif not self.started:
            return None  # the role, or what the client has
        if isinstance(ids, list):
            choice["token_ids"], self._carried_ids = self._carried_ids, []
        if self._format.has_messages:
            choice = self._chat_choice(choice, delta, text, reason)
        else:
            choice["text"] = text
            if "prompt_token_ids" in choice:
                choice["prompt_token_ids"] = None
        event["choices"] = [choice]
        return self._with_head(event)

    def _chat_choice(self, choice: dict[str, Any], delta: Any, text: str, reason: Any) -> dict[str, Any]:
        if isinstance(delta, dict):
            delta.pop("role", None)
            if "content" in delta or text:
                delta["content"] = text
            return choice
        # An event of a completion, with the fields of a chat's in vLLM's order.
        chat_choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
        if reason is not None:
            chat_choice["stop_reason"] = choice.get("stop_reason")
        if "token_ids" in choice:
            chat_choice["token_ids"] = choice["token_ids"]
        return chat_choice

    def _with_head(self, event: dict[str, Any]) -> dict[str, Any]:
        """The event with what the events of one stream have in common, and with the usage of the whole."""
        head = self._so_far.head
        for name in _HEAD_FIELDS:
            if name in event and name in head:
                event[name] = head[name]
        if "object" in event:
            event["object"] = self._format.event_object
        for name in _OWN_FIELDS:  # they describe only this engine's part
            event.pop(name, None)
        if isinstance(event.get("usage"), dict):
            event["usage"] = self._whole_usage(event["usage"])
        return event

    def _whole_usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        before = self._generated_before
        prompt = self._so_far.prompt_tokens
        if prompt is None:
            prompt = max(0, parse_token_count(usage.get("prompt_tokens")) - before)
        completion = before + parse_token_count(usage.get("completion_tokens"))
        whole = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
        # In the order of the engine; details, such as the cached part of the prompt, are of this engine's prompt.
        return {name: whole[name] for name in usage if name in whole} | {
            name: value for name, value in usage.items() if name not in whole and value is None
        }


def end_locally(recorder: ChoicesRecorder, stream_format: ChoicesFormat, so_far: StreamSoFar) -> bytes:
    """Ends a stream of which no token is missing; returns the bytes for the client."""
    head = {**so_far.head, "object": stream_format.event_object}
    fingerprint = {name: head.pop(name) for name in ("system_fingerprint",) if name in head}
    events: list[dict[str, Any]] = []
    if so_far.finish_reason is None:  # the client's limit was reached
        content: dict[str, Any] = {"delta": {}} if stream_format.has_messages else {"text": ""}
        events.append({**head, "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": "length"}]})
    if so_far.counted and so_far.prompt_tokens is not None and not recorder.has_usage_event:
        prompt, completion = so_far.prompt_tokens, so_far.tokens
        usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}
        events.append({**head, "choices": [], "usage": usage, **fingerprint})
    recorder.resume()
    return recorder.feed(b"".join([b"data: %b\n\n" % _encode(event) for event in events]) + DONE)
