"""A stream of /v1/messages that begins anew at another engine; see router.core.endpoints.continuation.anew_typed."""

from typing import Any, Final

from router.core.endpoints.continuation.anew_typed import AnewRecorder, published_events
from router.core.endpoints.continuation.repeated_reasoning import FollowingReasoning
from router.core.endpoints.endpoint import Recorder
from router.core.endpoints.recording.typed_events import EventReader, TypedRecorder
from router.core.endpoints.requests.malformed import MalformedResponseError

Json = dict[str, Any]

_ANSWER_MARKERS: Final = {b'"text_delta"': "text", b'"input_json_delta"': "tools"}


def begin_message_anew(recorder: Recorder, reader: EventReader) -> Recorder | str:
    """See Streaming.begin_anew. `reader`: a new one."""
    if not isinstance(recorder, TypedRecorder):
        return "endpoint"
    events = published_events(recorder, _ANSWER_MARKERS)
    if isinstance(events, str):
        return events
    open_block: int | None = None
    blocks, is_signed, thinking = 0, False, ""
    for event in events:
        match event:
            case {"type": "message_start" | "ping"}:
                pass
            case {"type": "content_block_start", "content_block": {"type": "thinking" | "redacted_thinking"}}:
                open_block, blocks, is_signed, thinking = blocks, blocks + 1, False, ""
            case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": str(text)}}:
                thinking += text
            case {"type": "content_block_delta", "delta": {"type": "signature_delta"}}:
                is_signed = True
            case {"type": "content_block_stop"}:
                open_block = None
            case {"type": "content_block_start", "content_block": {"type": "tool_use"}}:
                return "tools"
            case _:
                return "text"
    said = FollowingReasoning(thinking)
    return AnewRecorder(recorder, reader, AnewMessages(open_block, blocks, said, is_signed=is_signed))


class AnewMessages:
    """The second engine's thinking goes on in the block in which the first one stopped, if that is still open.

    All other blocks come after those that the client has.
    """

    def __init__(self, open_block: int | None, blocks: int, thinking: FollowingReasoning, *, is_signed: bool) -> None:
        """`open_block`: the index of a block of thinking; `is_signed`: only its end is missing.

        `blocks`: how many have begun. `thinking`: that of the last one.
        """
        self._open_block = open_block
        self._is_signed = is_signed
        self._blocks = blocks
        self._indexes: dict[Any, int] = {}
        self._thinking = thinking
        self._joined_block: int | None = None  # of the second engine

    def rewrite(self, event: Json) -> list[Json]:
        match event:
            case {"type": "message_start"}:
                # The client has that of the first engine. `message_delta` has the usage, with the prompt's tokens.
                return []
            case {"type": "content_block_start", "index": int(index), "content_block": dict(block)}:
                return self._start(index, block)
            case {"type": "content_block_delta" | "content_block_stop", "index": int(index)}:
                if index not in self._indexes:
                    raise MalformedResponseError("a block that has not begun")
                changed = {**event, "index": self._indexes[index]}
                return [changed] if index != self._joined_block else self._join(changed)
            case {"type": "message_delta"} if self._open_block is not None:  # the second engine has said nothing
                return [*self._end_of(self._open_block), event]
        return [event]

    def _start(self, index: int, block: Json) -> list[Json]:
        opened, self._open_block = self._open_block, None
        # A block has one signature, at its end. After it, clients join no more text.
        if opened is not None and block.get("type") == "thinking" and not self._is_signed:
            self._indexes[index], self._joined_block = opened, index
            return []
        self._indexes[index] = self._blocks
        self._blocks += 1
        started = {"type": "content_block_start", "index": self._indexes[index], "content_block": block}
        return [started] if opened is None else [*self._end_of(opened), started]

    def _join(self, event: Json) -> list[Json]:
        """The events for one of the block of thinking that both engines have, without what the second one repeats."""
        delta = event.get("delta")
        is_thinking = isinstance(delta, dict) and delta.get("type") == "thinking_delta"
        said = delta.get("thinking") if isinstance(delta, dict) and is_thinking else ""
        if not isinstance(said, str):
            raise MalformedResponseError("a delta of thinking has no text")
        text = self._thinking.follow(said, is_last=not is_thinking)
        added = {"type": "content_block_delta", "index": event["index"]}
        thinking = [{**added, "delta": {"type": "thinking_delta", "thinking": text}}] if text else []
        return thinking if is_thinking else [*thinking, event]

    def _end_of(self, opened: int) -> list[Json]:
        # Clients expect a signature of each block of thinking; vLLM's is a random string that nobody checks.
        delta = {"type": "signature_delta", "signature": ""}
        signed = [] if self._is_signed else [{"type": "content_block_delta", "index": opened, "delta": delta}]
        return [*signed, {"type": "content_block_stop", "index": opened}]
