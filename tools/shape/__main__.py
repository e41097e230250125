"""`python -m tools.shape`: prints the largest figures of the code's shape; fails if one is worse than its limit."""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from tools.shape.measures import Shape, measure
from tools.shape.ratchet import (
    MEASURES,
    comments,
    docstrings,
    figures_of,
    find_offences,
    lowered,
    read_limits,
    write_limits,
)

PACKAGES: Final = ("router", "engines")
WORST: Final = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.shape", description=__doc__)
    parser.add_argument("--json", action="store_true", help="all figures, for machines")
    parser.add_argument("--lower", action="store_true", help="takes out of limits.toml what got better")
    options = parser.parse_args()
    shape, limits = measure(Path(__file__).parents[2], PACKAGES), read_limits()
    if options.lower:
        limits = lowered(shape, limits)
        write_limits(limits)
    sys.stdout.write(_as_json(shape) if options.json else _as_text(shape))
    offences = list(find_offences(shape, limits))
    for offence in offences:
        sys.stderr.write(f"shape: {offence}\n")
    return 1 if offences else 0


def _as_json(shape: Shape) -> str:
    figures = {name: {each.name: each.value for each in figures_of(shape, name)} for name in MEASURES}
    return json.dumps({**shape._asdict(), **figures}, indent=1) + "\n"


def _as_text(shape: Shape) -> str:
    lines = []
    for name, words in MEASURES.items():
        lines.append(f"{words}:")
        lines += [f"  {figure.value:4}  {figure.name}" for figure in figures_of(shape, name)[:WORST]]
    lines.append(
        f"{shape.facts} fields of the facts, {shape.loose_files} modules directly in router/, "
        f"{docstrings(shape)} % of {shape.functions} functions with a docstring, "
        f"{comments(shape)} comment lines in a thousand of code, {shape.total_lines} lines"
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
