"""Turns the events of the engine that goes on with a stream into events of the stream that the client reads.

Theory of operation. The recorder of the stream gets the events of the second engine as if the first had sent them: with
the id, the time and the names of the first one's events, without a second role, and with the usage of the whole. So
what it returns for the client, and what it records, is one stream. Until the second engine has sent its first token,
the recorder gets nothing, and another engine can still take over.

A continued stream is rare, so each of its events is decoded.
"""

import json
from typing import Any, Final

import msgspec

from router.core.endpoints.continuation.stream_so_far import StreamSoFar
from router.core.endpoints.errors.engine_errors import is_error_object, unfinished_error
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import ReportedUsage, RequestSpeculation
from router.core.endpoints.recording.recording import ABORTED, EVENT_TOO_LONG, MAX_EVENT_SIZE
from router.core.endpoints.recording.sse import DONE, EventBuffer, error_payload, is_comment, payload, split_events
from router.core.endpoints.recording.usage import parse_token_count

DIVERGED: Final = b"the continuation does not repeat what was published"
"""The `failure` if the second engine generates another text than the one that the client has, or reasoning."""

_decode_event = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_HEAD_FIELDS: Final = ("id", "created", "model")
_OWN_FIELDS: Final = ("prompt_token_ids", "prompt_text", "metrics")
_TEXT_FIELDS: Final = ("role", "content", "text")


class ContinuedRecorder:
    """A Recorder of a second engine's stream, which passes it on to the recorder of the first one's.

    - The recorder gets nothing before the second engine's first token, nor if the continuation fails before it.
    - The text that is generated again (`StreamSoFar.unsettled`) is compared and left out. So are events without text
      before anything new: the role, and tokens that end inside a character.
    """

    def __init__(
        self, recorder: ChoicesRecorder, stream_format: ChoicesFormat, so_far: StreamSoFar, *, by_ids: bool
    ) -> None:
        """`stream_format`: of the client's stream. `by_ids`: see router.core.endpoints.continuation.stream_so_far."""
        self.started = False
        self.ended = False
        self.failure: bytes | None = None
        self.usage: ReportedUsage | None = None  # the recorder has that of the whole
        self.speculation: RequestSpeculation | None = None  # of a part it would say nothing about the engine
        self._recorder = recorder
        self._format = stream_format
        self._so_far = so_far
        self._by_ids = by_ids
        self._buffer = EventBuffer()
        self._held: list[bytes] = []
        self._joined = False
        self._repeated = so_far.unsettled if by_ids else ""
        self._carried_ids: list[Any] = []  # of events that were left out
        self._generated_before = so_far.settled_tokens if by_ids else so_far.text_tokens

    @property
    def is_complete(self) -> bool:
        return self.ended and self.failure is None

    def feed(self, data: bytes) -> bytes:
        if self.ended or self.failure is not None:
            return b""
        frames = self._buffer.feed(data)
        if not frames:
            if self._buffer.pending > MAX_EVENT_SIZE:
                self.failure = EVENT_TOO_LONG
            return b""
        return self._pass_on(self._rewrite_all(frames))

    def feed_end(self) -> bytes:
        rest = self._buffer.rest
        return self.feed(b"\n\n") if rest else b""

    def error_at_end(self) -> bytes | None:
        return unfinished_error(self._buffer.rest)

    def end_without_marker(self) -> bool:
        self.ended = self._recorder.end_without_marker()
        return self.ended

    def final_frames(self, *, include_usage: bool) -> bytes:
        return self._recorder.final_frames(include_usage=include_usage)

    def recorded_response(self, request: Any) -> Any:
        return self._recorder.recorded_response(request)

    def _rewrite_all(self, frames: bytes) -> list[bytes]:
        rewritten = []
        for frame in split_events(frames):
            if (reported := error_payload(frame)) is not None:
                self.failure = reported
                break
            data = payload(frame)
            if not data:
                if self.started and is_comment(frame):
                    rewritten.append(frame)
                continue
            if data == b"[DONE]":
                self.ended = True
                rewritten.append(DONE)
                break
            event = self._rewrite(data)
            if self.failure is not None:
                break
            if event is not None:
                rewritten.append(b"data: %b\n\n" % event)
        return rewritten

    def _pass_on(self, rewritten: list[bytes]) -> bytes:
        if not (self.started or self.ended):
            self._held += rewritten
            return b""
        if not self._joined:
            self._joined = True
            self._join()
            rewritten = [*self._held, *rewritten]
        return self._recorder.feed(b"".join(rewritten)) if rewritten else b""

    def _join(self) -> None:
        """From now on, the stream is this engine's."""
        self._recorder.resume()
        ids = self._recorder.token_ids
        if ids is not None:
            so_far = self._so_far
            ids.keep(so_far.settled_pieces if self._by_ids else so_far.text_pieces, so_far.published_pieces)
            ids.exact = ids.exact and self._by_ids

    # -- one event ----------------------------------------------------------------------------------------------------

    def _rewrite(self, data: bytes) -> bytes | None:
        """The payload for the client; None if nothing of it is new. Sets `failure`."""
        try:
            try:
                event = _decode_event(data)
            except msgspec.DecodeError:  # half a pair of surrogates and NaN are passed on, which msgspec cannot do
                event = json.loads(data)
                new = self._rewrite_event(event, data)
                return json.dumps(new).encode() if new is not None else None
        except (ValueError, RecursionError):  # all that decoders raise
            self.failure = b"an event was not JSON"
            return None
        new = self._rewrite_event(event, data)
        return _encode(new) if new is not None else None

    def _rewrite_event(self, event: Any, data: bytes) -> dict[str, Any] | None:
        if not isinstance(event, dict):
            self.failure = b"an event was not JSON"
            return None
        if is_error_object(event):
            self.failure = data
            return None
        match event.get("choices"):
            case [] | None:
                return self._with_head(event) if event.get("usage") is not None else None
            case [{"index": 0} as choice]:
                return self._rewrite_choice(event, choice)
            case _:
                self.failure = b"an event has not one choice"
                return None

    def _rewrite_choice(self, event: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any] | None:
        delta = choice.get("delta")
        fields = delta if isinstance(delta, dict) else {"text": choice.get("text")}
        text = fields.get("content") or fields.get("text") or ""
        if not isinstance(text, str) or any(
            value not in (None, "", [], {}) for name, value in fields.items() if name not in _TEXT_FIELDS
        ):
            self.failure = DIVERGED  # such as reasoning, or a call of a tool
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
        if text or reason is not None:
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
