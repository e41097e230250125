"""The engines' generations, read from the files that the engines write (see docs/simulator.md)."""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.chaos.workload import RequestOrigin


class LoggedGeneration(NamedTuple):
    """`at`: when the engine began it, in monotonic seconds. `origin`: the request for which it began it."""

    name: str
    engine: str
    at: float
    origin: RequestOrigin


class GenerationIndex:
    """All generations of all engines, killed engines included."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files`: by the engine's name."""
        self._files = files
        self._offsets = dict.fromkeys(files, 0)
        self._generations: dict[str, LoggedGeneration] = {}
        self._ids: dict[str, str] = {}
        self._continued_by: defaultdict[str, set[str]] = defaultdict(set)

    def find(self, name: str) -> LoggedGeneration | None:
        if name not in self._generations:
            self._read_new_lines()
        return self._generations.get(name)

    def __len__(self) -> int:
        self._read_new_lines()
        return len(self._generations)

    def matches_id(self, name: str, answer_id: str) -> bool:
        """Whether this is the `id` that all clients got for this generation so far."""
        return self._ids.setdefault(name, answer_id) == answer_id

    def is_of(self, generation: LoggedGeneration, engine: str | None) -> bool:
        """Whether the engine has generated it, or gone on with it."""
        if engine == generation.engine:
            return True
        self._read_new_lines()
        return engine in self._continued_by[generation.name]

    def _read_new_lines(self) -> None:
        for engine, path in self._files.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[engine])
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # the engine is still writing it
                    self._offsets[engine] += len(line)
                    record = json.loads(line)
                    if record.get("continued"):
                        self._continued_by[record["generation"]].add(engine)
                        continue
                    origin = RequestOrigin.parse(record["asked_by"])
                    self._generations[record["generation"]] = LoggedGeneration(
                        record["generation"], engine, record["at"], origin
                    )
