"""The guard for the cost of a request: the instructions on four paths, compared with figures kept in costs.toml.

    make costs

It runs in the compiled build and needs valgrind. A path that takes over TOLERANCE more than its figure is an error:
either the change is mended, or the same commit raises the figure in costs.toml and says there why. Python, the C
library and the processor's features change all figures together. So they are scaled by a fixed piece of Python, the
yardstick, which is counted in the same run.

request_paths.py says what is counted, and how far two runs differ.
"""

import argparse
import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Awaitable
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.request_paths import PATHS, CountedRouter, RequestPath, counted_router, total_of

TOLERANCE: Final = 0.02
FIGURES: Final = Path(__file__).with_name("costs.toml")

_ROUNDS: Final = 8
# What the process does each second is in a round, too, and is as much as 4 % of 100 hits.
_HITS_OF_A_ROUND: Final = 400
_MISSES_OF_A_ROUND: Final = 100

_SETUP: Final = attrgetter("setup")

_YARDSTICK: Final = """
import hashlib, json
for number in range(4_000):
    text = json.dumps({"id": number, "words": ["a"] * 8, "text": f"{number}" * 8})
    fields = json.loads(text)
    fields["hash"] = hashlib.sha256(text.encode()).hexdigest()
    sorted(fields, key=lambda name: fields[name] is None)
"""


class Figures(NamedTuple):
    """Million instructions: of the yardstick, and of a request by the name of its path."""

    yardstick: float
    paths: dict[str, float]


class Comparison(NamedTuple):
    """What a path takes, in million instructions; `scale`: what the yardstick takes here, 1 is as in the file."""

    path: str
    kept: float
    counted: float
    scale: float

    @property
    def figure(self) -> float:
        """What would be in the file for this count."""
        return self.counted / self.scale

    @property
    def change(self) -> float:
        """0.02 is 2 % more than the figure that is kept."""
        return self.figure / self.kept - 1

    @property
    def is_dearer(self) -> bool:
        return self.change > TOLERANCE


def read_figures(text: str) -> Figures:
    """Raises ValueError for a figure that does not say why it is as high as it is."""
    document = tomllib.loads(text)
    for row in document["figure"]:
        if not row.get("why", "").strip():
            raise ValueError(f"the figure of {row['path']!r} has no `why`")
    return Figures(document["yardstick"], {row["path"]: row["million"] for row in document["figure"]})


async def measure(kept: Figures) -> list[Comparison]:
    """A path that seems dearer is counted once more."""
    scale = count_yardstick() / kept.yardstick
    counted = {}
    by_setup = groupby(sorted((path for path in PATHS if path.name in kept.paths), key=_SETUP), key=_SETUP)
    for paths in (list(group) for _, group in by_setup):
        async with counted_router(paths[0]) as router:
            for path in paths:
                result = Comparison(path.name, kept.paths[path.name], await _count(router, path), scale)
                if result.is_dearer:
                    result = result._replace(counted=min(result.counted, await _count(router, path)))
                counted[path.name] = result
    return [counted[name] for name in kept.paths]


def _count(router: CountedRouter, path: RequestPath) -> Awaitable[float]:
    requests = _HITS_OF_A_ROUND if path.hits else _MISSES_OF_A_ROUND
    return router.million_instructions(path, requests=requests, rounds=_ROUNDS)


def count_yardstick() -> float:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "out")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", sys.executable, "-I", "-S"]
        subprocess.run([*command, "-c", _YARDSTICK], check=True, capture_output=True, env={"PYTHONHASHSEED": "0"})
        return total_of(output) / 1e6


def is_compiled() -> bool:
    found = importlib.util.find_spec("router.flow.attempts.dispatch")
    return found is not None and (found.origin or "").endswith(".so")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true", help="a JSON object for each path")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("costs: valgrind is missing (Debian, Ubuntu: apt-get install valgrind)")
    if not is_compiled():
        sys.exit("costs: the figures are those of the compiled build: make costs")
    kept = read_figures(FIGURES.read_text(encoding="utf-8"))
    results = asyncio.run(measure(kept))
    for each in results:
        if options.json:
            print(json.dumps({**each._asdict(), "change": round(each.change, 4)}))
        else:
            print(f"{each.path:28} {each.counted:7.4f} million instructions, {each.change:+.1%}")
    dearer = [each for each in results if each.is_dearer]
    for each in dearer:
        print(
            f"costs: {each.path} takes {each.change:.1%} more than benchmarks/costs.toml says. Mend it, or raise the "
            f"figure to {each.figure:.4f} and say there why.",
            file=sys.stderr,
        )
    return 1 if dearer else 0


if __name__ == "__main__":
    sys.exit(main())
