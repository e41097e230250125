"""Chats for a load: a long system prompt, and a question with a number."""

import json
from typing import Final

SYSTEM: Final = "You answer briefly, in plain words, and say so when you do not know. " * 22
"""About 1.5 KB, a typical length of system prompts."""

_MARK: Final = "<NUMBER>"


class Chats:
    """Bodies of chat requests. The same number always gives the same body; each name has chats of its own."""

    def __init__(self, *, model: str, max_tokens: int, name: str = "") -> None:
        question = f"{json.dumps(name)[1:-1]} question {_MARK}: " + "what is the sea? " * 16
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        fields = {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens}
        # Encoded once: json.dumps for each request would be most of the cost of a load.
        self._json = json.dumps(fields).encode().split(_MARK.encode())
        self._stream = json.dumps({**fields, "stream": True}).encode().split(_MARK.encode())

    def body(self, number: int | str, *, stream: bool) -> bytes:
        """`number`: decimal, or a text that needs no escapes in JSON."""
        return str(number).encode().join(self._stream if stream else self._json)
