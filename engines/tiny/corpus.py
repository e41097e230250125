"""The training text of the small models.

Functions of the standard library answer requests for code, short paragraphs of prose (prose.py) everything else. So
nothing is downloaded.
"""

import ast
import importlib.util
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engines.tiny.prompts import Prompt, Task
from engines.tiny.prose import PARAGRAPHS

CODE_MODULES = (
    "ast",
    "base64",
    "bisect",
    "calendar",
    "cgitb",
    "codecs",
    "colorsys",
    "copy",
    "csv",
    "dis",
    "enum",
    "fnmatch",
    "fractions",
    "functools",
    "genericpath",
    "glob",
    "gzip",
    "heapq",
    "inspect",
    "ipaddress",
    "keyword",
    "linecache",
    "locale",
    "mimetypes",
    "ntpath",
    "operator",
    "pickletools",
    "posixpath",
    "pprint",
    "quopri",
    "random",
    "reprlib",
    "shlex",
    "shutil",
    "statistics",
    "string",
    "struct",
    "symtable",
    "tempfile",
    "textwrap",
    "tokenize",
    "traceback",
    "types",
    "uuid",
    "warnings",
    "weakref",
    "zipfile",
)
"""Modules with short, documented functions; modules that this Python lacks are skipped."""

SYSTEM_PROMPTS = (
    *("",) * 6,
    "You are a helpful assistant.",
    "Be brief.",
    "You are an expert. Answer with care.",
    "You answer briefly.",
    "Answer in one paragraph.",
    "You are number 7.",
)

_MIN_LENGTH, _MAX_LENGTH = 80, 320
"""Characters of an answer: enough to stream, few enough for a small model to learn where it ends."""


@dataclass(frozen=True)
class Dialogue:
    """One question and its answer ("" for none yet), with the system prompt before them ("" for none)."""

    task: Task
    system: str
    question: str
    answer: str


def source_texts(modules: Iterable[str] = CODE_MODULES) -> Iterator[str]:
    """The sources of those modules that exist as Python files; none is imported."""
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin).read_text(encoding="utf-8", errors="replace")


def documented_functions(source: str) -> Iterator[str]:
    """The public functions of a module that have a docstring and the length of an answer, as Markdown."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or not ast.get_docstring(node):
            continue
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if _MIN_LENGTH <= len(text) <= _MAX_LENGTH:
            yield f"```python\n{text}\n```"


def collect_passages(count: int, seed: int = 0) -> dict[Task, list[str]]:
    """At most `count` distinct answers for each task, deterministic for one version of Python."""
    functions = (function for source in source_texts() for function in documented_functions(source))
    rng = random.Random(seed)  # noqa: S311 - a choice of texts, no secret
    passages: dict[Task, list[str]] = {
        "chat": [f"In short: {text}" for text in PARAGRAPHS],
        "code": list(dict.fromkeys(functions)),
    }
    return {task: rng.sample(texts, min(count, len(texts))) for task, texts in passages.items()}


def select_passage(prompt: str, passages: Sequence[str]) -> str:
    """The answer to a prompt, by the last two letters of the prompt.

    A small model can learn this rule and apply it to prompts that it has not seen, so its answers vary and are
    certain.
    """
    ending = "".join(filter(str.isalpha, prompt.lower()))[-2:]
    return passages[zlib.crc32(ending.encode()) % len(passages)]


def dialogues(prompts: Iterable[Prompt], passages: Mapping[Task, Sequence[str]], seed: int = 0) -> list[Dialogue]:
    """Every prompt with its answer, with and without a system prompt."""
    rng = random.Random(seed)  # noqa: S311 - a choice of words, no secret
    return [
        Dialogue(
            prompt.task, rng.choice(SYSTEM_PROMPTS), prompt.text, select_passage(prompt.text, passages[prompt.task])
        )
        for prompt in prompts
    ]


def without_answer(dialogue: Dialogue) -> Dialogue:
    return replace(dialogue, answer="")
