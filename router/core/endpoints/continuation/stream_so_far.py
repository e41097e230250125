"""Whether another engine can go on with a stream that its engine has broken off, and from where.

Theory. A client has read part of a response, and the engine that generated it is gone. Another engine of the same model
gets the prompt and what has been said, as the beginning of its own response. There are two ways:

- by token ids: vLLM sends the ids of the prompt and of each event's tokens. The next engine gets exactly these, so it
  is in the state that the failed one was in. A chat with tools goes this way only if the engine has a parser for them;
  see router.core.endpoints.continuation.derendered_chat.
- by text: a chat gets what has been said as a last message to be continued, a completion gets it after its prompt. The
  next engine tokenizes it anew, which need not give the same tokens.

Ids run ahead of the text while an engine holds text back: the bytes of an incomplete character and, with stop strings,
always as many characters as the longest one can have without its end. A prompt of ids must not end inside a character:
vLLM 0.32 then repeats the whole prompt. An event with one token and a text ends with a whole character; the ids up to
there are settled if all of their text has been published. What was published after it is generated again, compared and
left out, and so this way needs temperature 0 if there is such text. A stop string cannot begin in text before the seam
and end after it: it would have had to end in what the failed engine still held back.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from router.core.endpoints.continuation.event_forms import MAX_LITERAL_EVENTS, literal_count, said_fields
from router.core.endpoints.continuation.published_events import PublishedCall, PublishedEvent, calls_of, read_events
from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.delta_template import FINISH_REASON, StreamParts, TemplateRun
from router.core.endpoints.recording.token_ids import TokenIdCutter
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS

MAX_ASKING_BODY: Final = 1 << 20
"""Bytes. For a request with a larger body, engines are not asked for token ids: the prompt's come in one event."""

_ID_LIST: Final = re.compile(rb"[0-9]{1,10}(?:,[0-9]{1,10})*")

_OBSTACLES: Final = {
    "tool_choice": "tools",
    "functions": "tools",
    "function_call": "tools",
    "response_format": "schema",
    "structured_outputs": "schema",
    "guided_json": "schema",
    "guided_regex": "schema",
    "guided_choice": "schema",
    "guided_grammar": "schema",
    "regex": "schema",  # this and the next two: of SGLang
    "ebnf": "schema",
    "structural_tag": "schema",
    "json_schema": "schema",  # of SGLang and llama.cpp
    "grammar": "schema",  # of llama.cpp
    "n": "choices",
    "best_of": "choices",
    "use_beam_search": "choices",
    "logprobs": "logprobs",
    "top_logprobs": "logprobs",
    "prompt_logprobs": "logprobs",
    "logprob_token_ids": "logprobs",
    "return_token_ids": "token_ids",
    "return_tokens_as_token_ids": "token_ids",
    "return_prompt_text": "token_ids",
    "echo": "prompt",
    "suffix": "prompt",
    "prompt_embeds": "prompt",
    "truncate_prompt_tokens": "prompt",
    "kv_transfer_params": "prompt",
    "modalities": "audio",
    "audio": "audio",
    "include_reasoning": "reasoning",
}
"""Fields that rule a continuation out, with the reason, unless they have a value of _HARMLESS or no value."""

_OBSTACLES_TO_ANEW: Final = frozenset(
    name for name, obstacle in _OBSTACLES.items() if obstacle in ("choices", "token_ids")
)

_HARMLESS: Final[dict[str, tuple[Any, ...]]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "n": (1,),
    "best_of": (1,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "include_reasoning": (True,),
}
MAX_REPEATED: Final = 256
"""Characters that may be generated again and compared; with more, the way by text is sooner at what is new."""

_USAGE: Final = b'"usage"'
_LAST_PARTS: Final = 4
"""Parts at the end of a stream in one of which a finish reason is: after it come the usage and the end."""


def request_obstacle(request: InferenceRequest) -> str | None:
    """Why a stream for this request cannot be continued, in a word; None if nothing of the request is against it."""
    streaming = request.endpoint.streaming
    if streaming is None or streaming.choices_format is None:
        return "endpoint"
    fields = request.fields
    for name in _OBSTACLES.keys() & fields.keys():
        if _is_obstacle(fields, name):
            return _OBSTACLES[name]
    if not streaming.choices_format.has_messages:
        prompt = fields.get("prompt")
        if not prompt:
            return "prompt"  # an engine that got one would not know what came before
        if isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int):
            return "choices"
    # Nothing is held back if stop strings are part of the text, and they are not looked for before `min_tokens`. So one
    # may begin in published text.
    if fields.get("stop") and (fields.get("include_stop_str_in_output") or fields.get("min_tokens")):
        return "stop"
    return None


def _is_obstacle(fields: Mapping[str, Any], name: str) -> bool:
    value = fields[name]
    if value is None or (value is False and name != "include_reasoning") or value in ([], {}, ""):
        return False
    return value not in _HARMLESS.get(name, ())


def may_begin_anew(request: InferenceRequest) -> bool:
    """Whether a stream for this request can begin anew while it has only reasoning."""
    streaming, fields = request.endpoint.streaming, request.fields
    if streaming is None or streaming.begin_anew is None:
        return False
    return not any(_is_obstacle(fields, name) for name in _OBSTACLES_TO_ANEW & fields.keys())


def asks_token_ids(request: InferenceRequest) -> bool:
    """Whether an engine that has them is asked for the ids of tokens."""
    return len(request.body) <= MAX_ASKING_BODY and request_obstacle(request) is None


class StreamSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """What has been published of a response.

    - `text`: all of it. `finish_reason`: None unless only the end of the stream is missing.
    - `tokens`: the number that has been generated, by their ids or by the usage in the last event; `counted`: whether
      there was one of these. If not, it is the number of events with text, each of which may have several tokens.
    - `text_tokens`: as far as it is known, without those whose text was held back: an engine that goes on from the text
      generates them again. `text_pieces`: the same, as pieces of TokenIdCutter.
    - `prompt_tokens`: None if unknown.
    - `has_reasoning`: reasoning came before the text. `calls`: of tools, in their order; the last one may have begun.
    - `prompt_ids`: the ids to go on from, as JSON without brackets: the prompt's, and those of the settled text; None
      if they are not known. `settled_tokens`: how many of these were generated; `settled_pieces`: the same, as pieces,
      and `published_pieces`: all that the client has; `unsettled`: the text after the settled one.
    - `generated_ids`: the ids of all that has been said, as JSON without brackets; None if they are not known.
    - `head`: the first fields of each event, in their order.
    """

    text: str
    finish_reason: str | None
    tokens: int
    counted: bool
    text_tokens: int
    text_pieces: int
    prompt_tokens: int | None
    has_reasoning: bool
    prompt_ids: bytes | None
    settled_tokens: int
    settled_pieces: int
    published_pieces: int
    unsettled: str
    calls: list[PublishedCall]
    generated_ids: bytes | None
    head: dict[str, Any]


class _TokenCount(NamedTuple):
    """See the fields of StreamSoFar. `is_exact`: they are not the number of events. `prompt_tokens`: by the usage."""

    tokens: int
    text_tokens: int
    is_exact: bool
    prompt_tokens: int | None


def held_back_chars(fields: Mapping[str, Any]) -> int:
    """The number of characters that vLLM always holds back, since a stop string may begin in them."""
    stop = fields.get("stop")
    texts = stop if isinstance(stop, list) else [stop]
    # Anything else than text is a 400 at vLLM, but not everywhere.
    return max([1, *(len(text) for text in texts if isinstance(text, str))]) - 1


def read_so_far(
    parts: StreamParts | None, cutter: TokenIdCutter | None, held_back: int = 0, limit: int | None = None, *,
    to_derender: bool = False,
) -> StreamSoFar | str:  # fmt: skip
    """What has been published, by the recorded events; or why it cannot be continued, in a word.

    `held_back`: see held_back_chars. `limit`: tokens of the whole response; None for any number. `to_derender`: all of
    it is settled, since a parser reads the tokens from the first one.
    """
    if parts is None:
        return "too-large"
    if literal_count(parts) > MAX_LITERAL_EVENTS:
        return "no-template"
    try:
        events, head = read_events(parts)
    except MALFORMED_RESPONSE_ERRORS:
        return "malformed"
    text, has_reasoning = "".join([event.text for event in events]), any(event.has_reasoning for event in events)
    finish_reason = next((event.finish_reason for event in reversed(events) if event.finish_reason), None)
    calls = calls_of(events)
    id_events = [event for event in events if event.has_ids]
    pieces = _known_pieces(cutter, id_events)
    # Events that were withheld, such as one with the finish reason "abort", come last and do not count.
    counts = [piece.count(b",") + 1 if piece else 0 for piece in pieces[: len(id_events)]]
    is_over = finish_reason is not None or (limit is not None and has_reasoning and sum(counts) >= limit)
    if not (text or calls or is_over):
        return "reasoning" if has_reasoning else "no-text"
    settled, unsettled = len(counts), ""
    if not to_derender:
        settled, unsettled = _settled_events(id_events, counts, text, held_back)
    text_pieces = _text_events(id_events, counts, text, held_back)
    counted = _count_tokens(events, counts, text_pieces)
    prompt_tokens = counted.prompt_tokens
    if cutter is not None and cutter.prompt:
        prompt_tokens = cutter.prompt.count(b",") + 1
    return StreamSoFar(
        text=text,
        finish_reason=finish_reason,
        tokens=counted.tokens,
        counted=counted.is_exact,
        text_tokens=counted.text_tokens,
        text_pieces=text_pieces,
        prompt_tokens=prompt_tokens,
        has_reasoning=has_reasoning,
        prompt_ids=_prompt_ids(cutter, pieces[:settled]) if pieces else None,
        settled_tokens=sum(counts[:settled]),
        settled_pieces=settled,
        published_pieces=len(id_events),
        unsettled=unsettled,
        calls=calls,
        generated_ids=_generated_ids(pieces, events),
        head=head,
    )


def _known_pieces(cutter: TokenIdCutter | None, id_events: Sequence[PublishedEvent]) -> Sequence[bytes]:
    """The ids of each event; empty if those of the prompt or of an event are not known."""
    if cutter is None or cutter.prompt is None or not 0 < len(id_events) <= len(cutter.pieces):
        return ()
    return cutter.pieces


def _count_tokens(events: Sequence[PublishedEvent], counts: Sequence[int], text_pieces: int) -> _TokenCount:
    """`counts`: the tokens of each event by their ids, empty if they are not known."""
    usage = events[-1].usage
    prompt_tokens = usage[0] if usage is not None else None
    spoken = [event for event in events if event.text or event.has_reasoning or event.calls]
    if counts and all(event.has_ids for event in spoken):
        return _TokenCount(sum(counts), sum(counts[:text_pieces]), True, prompt_tokens)
    # An engine without ids.
    tokens = usage[1] if usage is not None else len(spoken)
    return _TokenCount(tokens, tokens, usage is not None, prompt_tokens)


def _generated_ids(pieces: Sequence[bytes], events: Sequence[PublishedEvent]) -> bytes | None:
    spoken = [event for event in events if event.text or event.has_reasoning or event.calls]
    # The ids of what the last event says may be in a later one, which has not come.
    if not (pieces and spoken and spoken[-1].has_ids):
        return None
    ids = b",".join([piece for piece in pieces[: sum(event.has_ids for event in events)] if piece])
    return ids if _ID_LIST.fullmatch(ids) is not None else None


def _prompt_ids(cutter: TokenIdCutter | None, settled: Sequence[bytes]) -> bytes | None:
    if cutter is None or not cutter.exact:
        return None
    ids = b",".join([piece for piece in (cutter.prompt or b"", *settled) if piece])
    return ids if _ID_LIST.fullmatch(ids) is not None else None


def may_be_complete(parts: StreamParts, cutter: TokenIdCutter | None, limit: int | None) -> bool:
    """Whether the stream may have its finish reason or as many tokens as it may have, found without reading it."""
    if any(FINISH_REASON.search(part) for part in parts.parts[-_LAST_PARTS:] if not isinstance(part, TemplateRun)):
        return True
    if limit is None:
        return False
    pieces = cutter.pieces if cutter is not None else []
    if not pieces:  # then only the usage in an event tells it
        return _may_have_usage(parts)
    return sum([piece.count(b",") + 1 for piece in pieces if piece]) >= limit


def find_obstacle(parts: StreamParts | None, cutter: TokenIdCutter | None, *, only_text: bool = False) -> str | None:
    """An obstacle of the stream, or "uncounted" if its tokens are not counted, as far as it takes no reading.

    `only_text`: only a stream that has nothing else can go on.
    """
    if parts is None:
        return "too-large"
    if literal_count(parts) > MAX_LITERAL_EVENTS:
        return "no-template"
    if only_text:
        try:
            if said_fields(parts) != {"content"}:
                return "tools"
        except MALFORMED_RESPONSE_ERRORS:
            return "malformed"
    may_be_counted = cutter is not None and cutter.pieces and cutter.prompt is not None
    return None if may_be_counted or _may_have_usage(parts) else "uncounted"


def _may_have_usage(parts: StreamParts) -> bool:
    """Whether the last event may have it."""
    return any(_USAGE in part for part in parts.parts[-_LAST_PARTS:] if not isinstance(part, TemplateRun)) or any(
        _USAGE in template.end or _USAGE in template.begin for template in parts.templates
    )


def _settled_events(
    id_events: Sequence[PublishedEvent], counts: Sequence[int], text: str, held_back: int
) -> tuple[int, str]:
    """The number of events up to the last one at whose end ids and text agree, and the published text after it."""
    published = len(text)
    for number in range(len(counts), 0, -1):
        event = id_events[number - 1]
        # An event with several tokens may end with a part of a character although it has a text.
        if counts[number - 1] == 1 and event.text and published + held_back <= len(text):
            return number, text[published + held_back :]
        published -= len(event.text)
    return 0, text


def _text_events(id_events: Sequence[PublishedEvent], counts: Sequence[int], text: str, held_back: int) -> int:
    """The number of events that have all tokens of the published text."""
    published, whole, whole_length, last = len(text), 0, 0, 0
    for number in range(len(counts), 0, -1):
        event = id_events[number - 1]
        if not event.text:
            continue
        if published + held_back <= len(text):
            whole, whole_length = number, published + held_back
            break
        published -= len(event.text)
        last = number
    # The rest of the text is the beginning of what the tokens up to `last` say. It has at most a token for each byte.
    rest = len(text[whole_length:].encode())
    while whole < last and rest > 0:
        rest -= counts[whole]
        whole += 1
    return whole
