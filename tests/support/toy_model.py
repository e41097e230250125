"""A model with one answer, and an engine of it that sends the bytes of vLLM 0.32.

Its tokens are pieces of the answer's UTF-8, of up to three bytes; so some end inside a character. A continuation with
the ids of the prompt and of a part of the answer gets the rest. As vLLM, it holds back characters that are incomplete,
and with stop strings as many as the longest one has, less one.
"""

import json
from collections.abc import Sequence
from typing import Any

PROMPT_IDS = [7, 300, 12]
EOS = 2
_FIRST_ID = 1000  # of the answer's tokens, which are numbered


class ToyModel:
    """`answer`: all of its text. `sizes`: the bytes of its tokens, repeated."""

    def __init__(self, answer: str, sizes: list[int]) -> None:
        self.tokens: list[bytes] = []
        rest = answer.encode()
        while rest:
            size = sizes[len(self.tokens) % len(sizes)]
            self.tokens.append(rest[:size])
            rest = rest[size:]

    def ids(self) -> list[int]:
        return [_FIRST_ID + number for number in range(len(self.tokens))]

    def tokens_of(self, text: str) -> int:
        """The number of tokens that a beginning of the answer has."""
        said = text.encode()
        for number in range(len(self.tokens) + 1):
            if b"".join(self.tokens[:number]) == said:
                return number
        raise AssertionError("not the beginning of the answer, or not at a token's end")

    def said(self, prompt: list[int]) -> int:
        """The number of tokens of the answer that a prompt ends with."""
        said = len(prompt) - len(PROMPT_IDS)
        assert prompt == PROMPT_IDS + self.ids()[:said]
        # vLLM would repeat the whole prompt.
        b"".join(self.tokens[:said]).decode()
        return said

    def steps(
        self, said: int, *, max_tokens: int, stop: list[str], groups: list[int]
    ) -> list[tuple[str, list[int], str | None, Any]]:
        """The events after `said` tokens: text, ids, finish reason, stop reason. `groups`: tokens of each, repeated."""
        pending = b""
        held = max(map(len, stop), default=1) - 1
        text, sent = "", 0
        events: list[tuple[str, list[int], str | None, Any]] = []
        position = said
        while True:
            ids: list[int] = []
            reason, stop_reason = None, None
            for _ in range(groups[len(events) % len(groups)]):
                if position == len(self.tokens):
                    ids.append(EOS)
                    reason = "stop"
                    break
                pending += self.tokens[position]
                if _is_whole(pending):
                    text, pending = text + pending.decode(), b""
                ids.append(_FIRST_ID + position)
                position += 1
                found = [(text.find(each), each) for each in stop if each in text]
                if found:
                    at, stop_reason = min(found)
                    text, reason = text[:at], "stop"
                    break
                if position - said == max_tokens:
                    reason = "length"
                    break
            end = len(text) if reason else max(sent, len(text) - held)
            events.append((text[sent:end], ids, reason, stop_reason))
            sent = end
            if reason:
                return events


def _is_whole(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def stream_bytes(
    events: list[tuple[str, list[int], str | None, Any]], *, chat: bool, id_: str, created: int, prompt: list[int],
    with_ids: bool = True, usage: bool = True, continuous: bool = False, deltas: Sequence[str] = ("content",),
) -> bytes:  # fmt: skip
    """The events of a stream with `include_usage`, ids included. `continuous`: with `continuous_usage_stats`.

    `deltas`: the fields of a chat that have the text, event by event; the last one is that of all others. The text of
    `tool_calls` is arguments.
    """
    prefix = {"id": id_, "object": "chat.completion.chunk" if chat else "text_completion", "created": created}
    prefix["model"] = f"served-{id_}"
    frames: list[dict[str, Any]] = []
    if chat:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        more = {"prompt_token_ids": prompt if with_ids else None, "prompt_text": None}
        frames.append({**prefix, "choices": [role], **more})
    so_far = 0
    for number, (text, ids, reason, stop_reason) in enumerate(events):
        so_far += len(ids)
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": _delta(deltas[min(number, len(deltas) - 1)], text)} if chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if reason or not chat:
            choice["stop_reason"] = stop_reason
        if not chat:
            choice["prompt_token_ids"] = prompt if with_ids and number == 0 else None
        choice["token_ids"] = ids if with_ids else None
        frames.append({**prefix, "choices": [choice]})
        if continuous:
            total = len(prompt) + so_far
            frames[-1]["usage"] = {
                "prompt_tokens": len(prompt), "total_tokens": total, "completion_tokens": so_far,
            }  # fmt: skip
    generated = sum(len(ids) for _, ids, _, _ in events)
    counts = {
        "prompt_tokens": len(prompt), "total_tokens": len(prompt) + generated, "completion_tokens": generated,
    }  # fmt: skip
    if usage:
        frames.append({**prefix, "choices": [], "usage": counts, "system_fingerprint": "toy"})
    encoded = [json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode() for frame in frames]
    return b"".join(b"data: %b\n\n" % each for each in encoded) + b"data: [DONE]\n\n"


def _delta(name: str, text: str) -> dict[str, Any]:
    return {name: [{"index": 0, "function": {"arguments": text}}] if name == "tool_calls" else text}
