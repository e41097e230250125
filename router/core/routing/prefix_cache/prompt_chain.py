"""A prompt as a chain of hashes, so that two prompts with a common beginning have a common beginning of their chains.

The text is cut into pieces of PIECE bytes, in the order in which an engine sees it: tools, system prompt, documents,
and then role and content of each message. Each hash is of a piece and the hash before it, so equal hashes mean equal
prefixes. A piece also ends where a message ends: then a conversation's next turn begins with the whole chain of this
one, and two branches of a conversation have the same chain up to where they differ.

Two prompts that share no blocks in an engine's prefix cache have different chains from the start: adapter and sharing
group (see cache_salt) are the seed.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import xxhash

from router.core.cache.key import encode_canonical
from router.core.endpoints.endpoint import Conversation, InferenceRequest, Prompt

PIECE: Final = 1024
"""Bytes of a piece; a message may end within it."""

_SYSTEM_ROLES: Final = ("system", "developer")
# What chat templates render of a message besides its role and content. What else clients send back with an answer of
# an engine (`refusal`, `annotations`, `reasoning_content`) is not in the prompt.
_RENDERED_FIELDS: Final = ("name", "tool_calls", "function_call", "tool_call_id")
_IDENTITY_FIELDS: Final = ("id", "status")  # of an item of /v1/responses; they are not in the prompt
_ASSISTANT: Final = "assistant"
# The block with which Claude Code begins a system prompt changes with each request. vLLM leaves it out of the prompt
# (its pull request 36829), and so does a chain: else no turn of a conversation would begin as the turn before.
_ATTRIBUTION: Final = "x-anthropic-billing-header:"


class PromptChain(msgspec.Struct, frozen=True, gc=False):
    """The hashes of a prompt's prefixes, the shortest first, and `ends`: how many bytes each prefix has.

    - `home`: hash of the system prompt and the first piece after it, which a conversation keeps in all its turns; 0 for
      a prompt shorter than a piece, which is computed as fast as it is found.
    """

    hashes: Sequence[int] = ()
    ends: Sequence[int] = ()
    home: int = 0

    @property
    def size(self) -> int:
        """In bytes."""
        return self.ends[-1] if self.ends else 0


NO_PROMPT: Final = PromptChain()
"""Of a request that leaves nothing in a prefix cache, as far as the router can tell."""


def prompt_chain(request: InferenceRequest, seed: int) -> PromptChain:
    """The chain of a request's prompt; NO_PROMPT at an endpoint that generates nothing."""
    layout, fields = request.endpoint.input, request.fields
    if isinstance(layout, Conversation):
        head, rest = _conversation(layout, fields)
    elif isinstance(layout, Prompt):
        head, rest = [], [_prompt_bytes(fields.get(layout.field))]
    else:
        return NO_PROMPT
    return _chain(seed, head, rest)


def has_several_prompts(request: InferenceRequest) -> bool:
    """Whether the usage is of several prompts together; the chain is of the first one."""
    layout = request.endpoint.input
    value = request.fields.get(layout.field) if isinstance(layout, Prompt) else None
    return isinstance(value, list) and len(value) > 1 and not isinstance(value[0], int)


def answered_chain(chain: PromptChain, request: InferenceRequest, seed: int, answer: "Answer") -> PromptChain:
    """The chain of a prompt with its answer, as the next turn of the conversation repeats both."""
    layout = request.endpoint.input
    if isinstance(layout, Prompt):
        text = answer.choices[0].text if answer.choices else None
        prompt = _first_prompt(request.fields.get(layout.field))
        if isinstance(prompt, str) and isinstance(text, str):
            return _chain(seed, [], [_encode(prompt + text)])
        return chain
    try:
        return _extend(chain, (_message_bytes(message) for message in _answer_messages(answer)))
    except RecursionError:  # nested so deep that no request can repeat it
        return chain


# -- texts ------------------------------------------------------------------------------------------------------------


def _conversation(layout: Conversation, fields: Mapping[str, Any]) -> tuple[list[bytes], list[bytes]]:
    """The texts up to the end of the system prompt, and those after it."""
    head = [encode_canonical(fields["tools"])] if fields.get("tools") else []
    system = fields.get(layout.system_field) if layout.system_field is not None else None
    if system:
        if isinstance(system, list):
            system = [block for block in system if not _part_text(block).startswith(_ATTRIBUTION)]
        head.append(_message_bytes({"role": "system", "content": system}))
    messages = fields.get(layout.field)
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    elif not isinstance(messages, list):
        messages = []
    count = 0
    while count < len(messages) and messages[count].get("role") in _SYSTEM_ROLES:
        count += 1
    head += map(_message_bytes, messages[:count])
    rest = [encode_canonical(fields["documents"])] if fields.get("documents") else []
    rest += map(_message_bytes, messages[count:])
    return head, rest


def _message_bytes(message: Mapping[str, Any]) -> bytes:
    role, content = message.get("role"), message.get("content")
    if role is None:  # an item of /v1/responses that is no message, such as a function call
        return encode_canonical({name: value for name, value in message.items() if name not in _IDENTITY_FIELDS})
    if isinstance(content, str):
        texts = [content]
    else:
        texts = [_part_text(part) for part in content] if isinstance(content, list) else []
    if len(message) > 2 or content is None:
        rendered = {name: message[name] for name in _RENDERED_FIELDS if message.get(name)}
        if rendered:
            texts.append(encode_canonical(rendered).decode())
    return _encode(f"{role}\0{''.join(texts)}")


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    # An image has far fewer tokens than bytes, so its hash stands for it.
    return text if isinstance(text, str) else f"\0{xxhash.xxh3_64_hexdigest(encode_canonical(part))}"


def _prompt_bytes(value: Any) -> bytes:
    prompt = _first_prompt(value)
    if isinstance(prompt, str):
        return _encode(prompt)
    try:
        return array("I", prompt).tobytes()  # token ids, in as many bytes as a token of text has
    except (TypeError, OverflowError):  # nothing that an engine accepts
        return b""


def _first_prompt(value: Any) -> Any:
    """Of several prompts in one request, the first stands for all."""
    return value[0] if isinstance(value, list) and value and not isinstance(value[0], int) else value


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# -- answers ----------------------------------------------------------------------------------------------------------


class _Choice(msgspec.Struct, gc=False):
    text: Any = None
    message: Any = None


class Answer(msgspec.Struct, gc=False):
    """What the JSON responses of all endpoints have of the answer's text, and of the prompt's cached tokens."""

    choices: list[_Choice] = []
    content: Any = None
    output: Any = None
    usage: Any = None

    @property
    def cached_tokens(self) -> int | None:
        """The prompt tokens that the engine had in its prefix cache; None if it does not report them."""
        usage = self.usage if isinstance(self.usage, dict) else {}
        for name in ("prompt_tokens_details", "input_tokens_details"):
            details = usage.get(name)
            if isinstance(details, dict) and (cached := details.get("cached_tokens")) is not None:
                return _token_count(cached)
        return _token_count(usage.get("cache_read_input_tokens"))  # of /v1/messages


def _token_count(value: Any) -> int | None:
    return max(0, value) if isinstance(value, int) else None


_decode_answer: Final = msgspec.json.Decoder(Answer).decode


def parse_answer(body: bytes) -> Answer | None:
    """The answer in a JSON response; None if it cannot be read."""
    try:
        return _decode_answer(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _answer_messages(answer: Answer) -> Iterator[Mapping[str, Any]]:
    if answer.choices:
        message = answer.choices[0].message
        if isinstance(message, dict):
            yield message
    elif answer.content is not None:
        yield {"role": _ASSISTANT, "content": answer.content}
    elif isinstance(answer.output, list):
        yield from (item for item in answer.output if isinstance(item, dict))


# -- hashes -----------------------------------------------------------------------------------------------------------


def chain_seed(*names: str) -> int:
    return xxhash.xxh3_64_intdigest("\0".join(names).encode())


def _chain(seed: int, head: Iterable[bytes], rest: Iterable[bytes]) -> PromptChain:
    hashes: list[int] = []
    ends: list[int] = []
    _append(hashes, ends, seed, head)
    count = len(hashes)
    _append(hashes, ends, seed, rest)
    is_short = not ends or ends[-1] < PIECE
    return PromptChain(hashes, ends, 0 if is_short else hashes[min(count, len(hashes) - 1)])


def _extend(chain: PromptChain, texts: Iterable[bytes]) -> PromptChain:
    hashes, ends = list(chain.hashes), list(chain.ends)
    _append(hashes, ends, 0, texts)
    return PromptChain(hashes, ends, chain.home)


def _append(hashes: list[int], ends: list[int], seed: int, texts: Iterable[bytes]) -> None:
    parent = hashes[-1] if hashes else seed
    end = ends[-1] if ends else 0
    digest = xxhash.xxh3_64_intdigest
    for text in texts:
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            parent = digest(piece, parent)
            end += len(piece)
            hashes.append(parent)
            ends.append(end)
