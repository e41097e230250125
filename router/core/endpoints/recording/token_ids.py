"""Takes the ids of the tokens out of the events of a stream of chats or completions.

The router asks vLLM for them (`return_token_ids`), because with them another engine can go on with a stream exactly
where it broke off; see core.endpoints.continuation. The client gets the events as if they had not been asked for: with
`null` in place of each list, and without those that vLLM sends only for their ids. In JSON, a quote inside of a string
is escaped, so the bytes that are searched for do not occur in a text.
"""

import re
from typing import Final

from router.core.endpoints.recording.sse import split_events

STRING_CONTENT: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
"""The content of a JSON string in which each quote is escaped."""

_TOKEN_IDS: Final = b'"token_ids":['
_NO_TOKEN_IDS: Final = b'"token_ids":null'
_PROMPT_IDS: Final = b'"prompt_token_ids":['
_QUOTE: Final = ord('"')
_NEWLINE: Final = ord("\n")
_COMMA: Final = ord(",")
_ZERO: Final = ord("0")
_NINE: Final = ord("9")

# Before the ids of tokens that a parser of vLLM keeps to itself, such as `</think>`. Without `return_token_ids`, vLLM
# sends no event for them.
_WITHOUT_TEXT: Final = b'"delta":{},"logprobs":null,"finish_reason":null,'


def _is_of_list(byte: int) -> bool:
    return _ZERO <= byte <= _NINE or byte == _COMMA


class TokenIdCutter:
    """The ids of one stream, as the engines wrote them.

    - `pieces`: the ids of each event that has a list of them, without the brackets; a text between them has none. Those
      of an event that is left out are in the next one's.
    - `prompt`: the ids of the prompt; None until the engine has sent them.
    - `exact`: the prompt's ids and all pieces are what an engine would get as its prompt. Not so any more after a
      continuation for which the text was tokenized anew.
    """

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.prompt: bytes | None = None
        self.exact = True
        self._left_out = b""  # ids with a comma after each
        # The end of the template that `cut_text` was called with last, and what is before and after ids in it.
        self._end = self._before_ids = self._after_ids = b""

    def cut(self, frames: bytes) -> bytes:
        """Complete events, without their ids."""
        if self.prompt is None:
            frames = self._cut_prompt(frames)
        if self._left_out or frames.find(_WITHOUT_TEXT) >= 0:
            return b"".join([self._cut_event(event) for event in split_events(frames)])
        # Not by a regular expression, which costs more.
        parts = frames.split(_TOKEN_IDS)
        texts = [parts[0]]
        for part in parts[1:]:
            ids, end, text = part.partition(b"]")
            if not end:
                return frames  # no JSON
            self.pieces.append(ids)
            texts.append(text)
        return _NO_TOKEN_IDS.join(texts)

    def cut_text(self, frames: bytes, begin: bytes, end: bytes) -> bytes | None:
        """Takes the ids of a single event of a template (see delta_template); returns its text.

        None if it is not such an event, or comes after one that was left out: then call `cut`.
        This runs for every chunk, so it searches only where the ids are.
        """
        if end is not self._end:
            before, found, after = end.partition(_NO_TOKEN_IDS)
            self._end = end
            self._before_ids = before + _TOKEN_IDS if found else b""
            self._after_ids = b"]" + after
        after_ids = self._after_ids
        if not self._before_ids or self._left_out or not frames.startswith(begin) or not frames.endswith(after_ids):
            return None
        # Compiled, a loop over a few bytes costs less than a search that returns objects.
        ids_end = ids_begin = len(frames) - len(after_ids)
        while ids_begin > 0 and _is_of_list(frames[ids_begin - 1]):
            ids_begin -= 1
        head = frames[len(begin) : ids_begin]
        if not head.endswith(self._before_ids):
            return None
        text = head[: len(head) - len(self._before_ids)]
        # What precedes the last ids has quotes if it is more than a text, such as another event. Those of the arguments
        # of a call are escaped.
        if _NEWLINE in text or (_QUOTE in text and STRING_CONTENT.fullmatch(text) is None):
            return None
        self.pieces.append(frames[ids_begin:ids_end])
        return text

    def _cut_event(self, event: bytes) -> bytes:
        before, found, rest = event.partition(_TOKEN_IDS)
        ids, end, after = rest.partition(b"]")
        if not found or not end:  # the latter is no JSON
            return event
        if before.endswith(_WITHOUT_TEXT):
            self._left_out += ids + b"," if ids else b""
            return b""
        self.pieces.append(self._left_out + ids if self._left_out else ids)
        self._left_out = b""
        return before + _NO_TOKEN_IDS + self._cut_event(after)

    def _cut_prompt(self, frames: bytes) -> bytes:
        at = frames.find(_PROMPT_IDS)
        if at < 0:
            return frames
        begin = at + len(_PROMPT_IDS)
        end = frames.find(b"]", begin)
        if end < 0:
            return frames
        self.prompt = frames[begin:end]
        return frames[: begin - 1] + b"null" + frames[end + 1 :]

    def keep(self, kept: int, published: int) -> None:
        """Forgets the ids after the first `kept` pieces: another engine generates these tokens again.

        `published`: the events with a list that the client has, at least `kept`.
        """
        self.pieces[kept:] = [b""] * (published - kept)
        self._left_out = b""

    def discard(self) -> None:
        """Frees the memory; the stream can be continued no more."""
        self.pieces = []
        self.exact = False
