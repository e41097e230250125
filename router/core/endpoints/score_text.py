"""Scores, classes, pooled vectors and tokens as lines for people to read; see answer_text."""

from collections.abc import Iterator
from typing import Any, Final

_MAX_DOCUMENT: Final = 80
"""Characters of a document that are shown of it."""


def score_lines(answer: Any) -> Iterator[str]:
    """A line for each item of the answer; none if it is of another kind."""
    match answer:
        case {"results": list(items)} | {"data": list(items)}:
            for item in items:
                match item:
                    case {"index": index, "relevance_score": float() | int() as score}:
                        yield f"{score:.4f} document {index}{_document_text(item.get('document'))}"
                    case {"index": index, "score": float() | int() as score}:
                        yield f"{score:.4f} document {index}"
                    case {"index": index, "label": label, "probs": list(numbers)} if numbers:
                        yield f"input {index}: {label}, {max(map(_number, numbers)):.4f}"
                    case {"index": index, "object": "pooling", "data": list(numbers)}:
                        yield f"input {index}: {len(numbers)} {'vectors' if _has_lists(numbers) else 'numbers'}"
        case {"tokens": list(tokens)}:
            yield f"{len(tokens)} tokens"
        case {"input_tokens": int(count)}:
            yield f"{count} tokens"
        case {"prompt": str(text)}:
            yield text


def _document_text(document: Any) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        return ""
    line = " ".join(text[: 2 * _MAX_DOCUMENT].split())
    return f": {line}" if len(line) <= _MAX_DOCUMENT else f": {line[: _MAX_DOCUMENT - 1]}…"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _has_lists(numbers: list[Any]) -> bool:
    return bool(numbers) and isinstance(numbers[0], list)
