"""The answers of a tool script as tokens. Another engine continues and reads them by their ids.

An id has no text. But an engine with the same script knows every answer of it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from engines.simulator.text.answers import OutputSpec, Token, generate_tokens
from engines.simulator.text.schemas import sample_document
from engines.simulator.text.tokens import encode_text, token_id
from engines.simulator.text.tool_script import ToolScript

_USER: Final = encode_text("<|user|>\n")
_RESULT: Final = encode_text("<|tool|>\n")
_ANSWER: Final = encode_text("<|assistant|>\n")


def scripted_tokens(call: tuple[str, object], thought: str, text: str) -> Iterator[Token]:
    """An answer with one call: the name of the tool, and the schema of its arguments."""
    name, schema = call
    return generate_tokens(
        OutputSpec(
            seed=0, reasoning=bool(thought), thought=thought, text_before_calls=text,
            tool_calls=((name, sample_document(schema, 0)),),
        )
    )  # fmt: skip


def rest_of_ids(script: ToolScript, ids: Sequence[int]) -> Iterator[Token] | None:
    """What is left of the script's answer, where `ids` are the prompt of a chat and the beginning of that answer.

    None if they are not. Before the call, the answer is for the first tool whose name is in the prompt.
    """
    begin = max(_places(ids, _ANSWER), default=None)
    if begin is None:
        return None
    said = ids[begin + len(_ANSWER) :]
    # The tools of the chat have the role of their results, and come first.
    conversation = ids[min(_places(ids, _USER), default=0) : begin]
    step = 1 + sum(1 for _ in _places(conversation, _RESULT))
    thought, text = script.before_call(step)
    for name in script.tools:
        if any(_places(ids[:begin], encode_text(name))) and step <= script.calls:
            tokens = scripted_tokens(script.call(name, step), thought, text)
            if read_ids(tokens, said) is not None:
                return tokens
    return None


def read_ids(tokens: Iterator[Token], ids: Sequence[int]) -> list[Token] | None:
    read = list(islice(tokens, len(ids)))
    return read if [token_id(token.text) for token in read] == list(ids) else None


def _places(ids: Sequence[int], part: Sequence[int]) -> Iterator[int]:
    first, size = part[0], len(part)
    return (at for at, number in enumerate(ids) if number == first and list(ids[at : at + size]) == list(part))
