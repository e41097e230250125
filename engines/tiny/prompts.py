"""The prompts that the small models are trained on: of hundreds of kinds, so that a target knows the task of others.

Some are the project's own labelled examples for its classifier, which are mostly hard. Most are plain, put together
from parts (code_prompts.py, chat_prompts.py): there are many more of them than a model is trained on, so it learns
which words ask for code, and no prompt by heart. The prompts of the classifier's tests are not among them.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from engines.tiny.chat_prompts import chat_prompt, maths_prompt
from engines.tiny.code_prompts import code_prompt

Task = Literal["chat", "code"]
T = TypeVar("T")

EXAMPLES = Path(__file__).resolve().parents[2] / "tools" / "classifier_examples.jsonl"
"""A prompt and its task per line."""

MAX_LENGTH = 160
"""Characters of a prompt at most; longer ones, and those with letters outside ASCII, take too many tokens."""

_DROPPED = 0.3  # share of the words


@dataclass(frozen=True)
class Prompt:
    """One prompt and the task that it asks for."""

    task: Task
    text: str


def read_prompts(path: Path = EXAMPLES) -> Iterator[Prompt]:
    """The prompts that are short enough. Raises OSError if the file is missing: it exists only in a checkout."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            example = json.loads(line)
            if example["prompt"].isascii() and len(example["prompt"]) <= MAX_LENGTH:
                yield Prompt(example["task"], example["prompt"])


def plain_prompts(count: int, seed: int = 0) -> list[Prompt]:
    """`count` distinct prompts for each task; a quarter of those of chat are mathematics."""
    rng = random.Random(seed)  # noqa: S311 - a choice of texts, no secret
    maths = _distinct(maths_prompt, count // 4, rng)
    chat = _distinct(chat_prompt, count - len(maths), rng)
    code = _distinct(code_prompt, count, rng)
    return [Prompt("code", text) for text in code] + [Prompt("chat", text) for text in [*chat, *maths]]


def _distinct(make: Callable[[random.Random], str], count: int, rng: random.Random) -> list[str]:
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[make(rng)] = None
    return list(texts)


def drop_words(prompts: Iterable[Prompt], seed: int = 0) -> Iterator[Prompt]:
    """The prompts with some words left out: a model that is trained on them too depends less on single words."""
    rng = random.Random(seed)  # noqa: S311 - a choice of words, no secret
    for prompt in prompts:
        words = prompt.text.split(" ")
        left = [word for word in words if rng.random() > _DROPPED]
        if 2 <= len(left) < len(words):
            yield Prompt(prompt.task, " ".join(left))


def split(items: Sequence[T], count: int, seed: int = 0) -> tuple[list[T], list[T]]:
    """All items but `count`, and those `count`; deterministic."""
    shuffled = random.Random(seed).sample(items, len(items))  # noqa: S311 - a choice of texts, no secret
    return shuffled[count:], shuffled[:count]
