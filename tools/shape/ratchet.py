"""Compares the shape of the code with limits. What exceeds a limit today is known by name, and may only get better."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from tools.shape.measures import Figure, Shape

LIMITS_FILE: Final = Path(__file__).with_name("limits.toml")


class Measure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`limit` for all; `known`: what is above it, by name, each with its figure."""

    limit: int
    known: Mapping[str, int] = {}


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """See Shape. `facts` and `loose_files` at most, `docstrings` of a hundred functions at most, and `comments` in a
    thousand lines of code at least.
    """

    facts: int
    loose_files: int
    docstrings: int
    comments: int
    branches: Measure
    lines: Measure
    arguments: Measure
    imports: Measure
    files: Measure


MEASURES: Final = {
    "branches": "branches of a function",
    "lines": "lines of a function",
    "arguments": "arguments of a function",
    "imports": "modules of the project that a module imports",
    "files": "modules of a folder",
}


def read_limits(path: Path = LIMITS_FILE) -> Limits:
    return msgspec.toml.decode(path.read_bytes(), type=Limits)


def figures_of(shape: Shape, measure: str) -> Sequence[Figure]:
    figures: Sequence[Figure] = getattr(shape, measure)
    return figures


def docstrings(shape: Shape) -> int:
    return round(100 * shape.functions_with_docstring / max(1, shape.functions))


def comments(shape: Shape) -> int:
    return round(1000 * shape.comment_lines / max(1, shape.code_lines))


def find_offences(shape: Shape, limits: Limits) -> Iterator[str]:
    """A sentence for each figure that got worse, and for each known one that got better."""
    for measure, words in MEASURES.items():
        allowed: Measure = getattr(limits, measure)
        present = {figure.name: figure.value for figure in figures_of(shape, measure) if figure.value > allowed.limit}
        for name, value in present.items():
            known = allowed.known.get(name, allowed.limit)
            if value > known:
                yield f"{name}: {value} {words}, at most {known}"
        for name, known in allowed.known.items():
            value = present.get(name, 0)
            if value < known:
                yield f"{name}: {words} got better than {known}: run `python -m tools.shape --lower`"
    for value, limit, words in (
        (shape.facts, limits.facts, "fields of the facts about a request and a generation, at most"),
        (shape.loose_files, limits.loose_files, "modules directly in router/, at most"),
        (docstrings(shape), limits.docstrings, "of a hundred functions have a docstring, at most"),
        (limits.comments, comments(shape), "comment lines in a thousand lines of code, at least; there are"),
    ):
        if value > limit:
            yield f"{value} {words} {limit}"


def lowered(shape: Shape, limits: Limits) -> Limits:
    """The limits that this shape can keep: none is higher than before."""
    measures = {}
    for measure in MEASURES:
        allowed: Measure = getattr(limits, measure)
        present = {figure.name: figure.value for figure in figures_of(shape, measure)}
        known = {name: min(value, present.get(name, 0)) for name, value in sorted(allowed.known.items())}
        measures[measure] = Measure(allowed.limit, {name: each for name, each in known.items() if each > allowed.limit})
    return msgspec.structs.replace(
        limits, facts=min(limits.facts, shape.facts), loose_files=min(limits.loose_files, shape.loose_files), **measures
    )


def write_limits(limits: Limits, path: Path = LIMITS_FILE) -> None:
    lines = [
        "# What `make lint` allows of the shape of the code; see tools/shape. `known`: what was above a limit when",
        "# it was set. It only shrinks: `python -m tools.shape --lower` takes out what got better.",
        "",
        *(f"{name} = {getattr(limits, name)}" for name in ("facts", "loose_files", "docstrings", "comments")),
    ]
    for measure in MEASURES:
        allowed: Measure = getattr(limits, measure)
        lines += ["", f"[{measure}]", f"limit = {allowed.limit}"]
        if allowed.known:
            lines += ["", f"[{measure}.known]"]
            lines += [f'"{name}" = {value}' for name, value in allowed.known.items()]
    path.write_text("\n".join(lines) + "\n")
