"""The training text of the small models.

Functions of the standard library answer requests for code, Python's reference pages answer everything else. Every
CPython contains both, so nothing is downloaded and no licence is needed.
"""

import ast
import importlib.util
import pkgutil
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Task = Literal["chat", "code"]

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

CODE_REQUESTS = (
    "Write a Python function that {does}",
    "Write a Python function {name}.",
    "Implement `{name}` in Python.",
    "Show me Python code that {does}",
    "def {name}(",
    "Give me a function which {does} Use Python.",
)
CHAT_REQUESTS = (
    "Tell me about {subject}.",
    "What is {subject}?",
    "Explain {subject} to me.",
    "How does {subject} work?",
    "Hello! Can you say something about {subject}?",
    "Why does {subject} matter?",
)
SYSTEM_PROMPTS = ("", "", "", "You are a helpful assistant.", "Be brief.", "You are an expert. Answer with care.")

EVERYDAY_SUBJECTS = (
    "the sea",
    "the weather",
    "music",
    "history",
    "a railway",
    "the moon",
    "bread",
    "the city of Paris",
    "a good book",
    "rivers",
    "mountains",
    "winter",
    "the meaning of life",
    "chess",
    "a garden",
    "coffee",
    "the stars",
    "friendship",
    "an old house",
    "birds",
    "trade",
    "money",
    "health",
    "physics",
    "poetry",
    "the news",
    "language",
    "mathematics",
    "travel",
    "sleep",
    "a cat",
    "the law",
    "art",
    "computers",
    "the internet",
    "cooking",
    "trees",
    "time",
)
EVERYDAY_CODE_TASKS = (
    "reverses a string",
    "sorts a list",
    "adds two numbers",
    "reads a file",
    "counts the words in a text",
    "computes a factorial",
    "finds the largest element",
    "merges two dictionaries",
    "checks whether a number is prime",
    "parses a date",
    "opens a socket",
    "removes duplicates from a list",
    "converts celsius to fahrenheit",
    "computes fibonacci numbers",
    "validates an email",
    "flattens a nested list",
    "downloads a page",
    "splits a path",
    "rounds a number",
    "walks a directory",
    "formats a table",
    "joins strings",
    "searches a tree",
    "implements a queue",
    "caches its results",
    "swaps two values",
    "prints hello world",
)

_MIN_LENGTH, _MAX_LENGTH = 80, 480
"""Characters of an answer: enough to stream, few enough for a small model to learn where it ends."""


@dataclass(frozen=True)
class Dialogue:
    """One question and its answer, with the system prompt before them ("" for none)."""

    task: Task
    system: str
    question: str
    answer: str


@dataclass(frozen=True)
class Passage:
    """A text for answers: its subject and, for code, a description of what it does."""

    task: Task
    subject: str
    does: str
    text: str


def source_texts(modules: Iterable[str] = CODE_MODULES) -> Iterator[str]:
    """The sources of those modules that exist as Python files; none is imported."""
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            yield Path(spec.origin).read_text(encoding="utf-8", errors="replace")


def documented_functions(source: str) -> Iterator[Passage]:
    lines = source.splitlines()
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        summary = (ast.get_docstring(node) or "").strip().partition("\n")[0]
        if summary and _MIN_LENGTH <= len(text) <= _MAX_LENGTH:
            yield Passage("code", node.name, summary[:1].lower() + summary[1:90], f"```python\n{text}\n```")


def reference_pages() -> dict[str, str]:
    """Python's reference pages by subject, from pydoc; empty if the distribution omits them."""
    if importlib.util.find_spec("pydoc_data") is None or not any(
        module.name == "topics" for module in pkgutil.iter_modules(_package_path("pydoc_data"))
    ):
        return {}
    from pydoc_data.topics import topics

    return dict(topics)


def paragraphs(subject: str, page: str) -> Iterator[Passage]:
    """The paragraphs of prose on a reference page: no headings, no code, no tables."""
    for block in re.split(r"\n\s*\n", page):
        if block.startswith((" ", "*", "-")) or re.search(r"[{}|<>=]|::|\.\.\.|\n ", block):
            continue
        text = " ".join(block.split()).replace('"', "").replace("*", "")
        if _MIN_LENGTH <= len(text) <= _MAX_LENGTH and text[:1].isupper() and text.endswith("."):
            yield Passage("chat", subject.replace("-", " "), "", text)


def collect_passages(task: Task, count: int, seed: int = 0) -> list[Passage]:
    """At most `count` distinct passages for a task, deterministic for one version of Python."""
    passages: Iterable[Passage]
    if task == "code":
        passages = (passage for source in source_texts() for passage in documented_functions(source))
    else:
        passages = (
            passage for subject, page in sorted(reference_pages().items()) for passage in paragraphs(subject, page)
        )
    distinct = list({passage.text: passage for passage in passages}.values())
    return random.Random(seed).sample(distinct, min(count, len(distinct)))  # noqa: S311 - a choice of texts, no secret


def dialogues(passages: Iterable[Passage], each: int, seed: int = 0) -> list[Dialogue]:
    """Questions for every passage in `each` wordings, with and without a system prompt."""
    rng = random.Random(seed)  # noqa: S311 - a choice of words, no secret
    result = []
    for passage in passages:
        templates = CODE_REQUESTS if passage.task == "code" else CHAT_REQUESTS
        for template in rng.sample(templates, min(each, len(templates))):
            question = template.format(name=passage.subject, subject=passage.subject, does=passage.does)
            result.append(Dialogue(passage.task, rng.choice(SYSTEM_PROMPTS), question, passage.text))
    return result


def everyday_questions(task: Task, count: int, seed: int = 0) -> list[Dialogue]:
    """Everyday questions without answers: a target answers them, and its draft is trained on the answers."""
    rng = random.Random(seed)  # noqa: S311 - a choice of words, no secret
    code_tasks = [f"{code_task}." for code_task in EVERYDAY_CODE_TASKS]
    questions = []
    for _ in range(count):
        if task == "code":
            does = rng.choice(code_tasks)
            name = "_".join(does.rstrip(".").split()[:3])
            question = rng.choice(CODE_REQUESTS).format(name=name, does=does)
        else:
            question = rng.choice(CHAT_REQUESTS).format(subject=rng.choice(EVERYDAY_SUBJECTS))
        questions.append(Dialogue(task, rng.choice(SYSTEM_PROMPTS), question, ""))
    return questions


def _package_path(name: str) -> list[str]:
    spec = importlib.util.find_spec(name)
    return list(spec.submodule_search_locations or ()) if spec is not None else []
