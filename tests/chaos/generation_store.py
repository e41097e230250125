"""Which generations there were: read from the files that the engines write (see docs/simulator.md)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.chaos.workload import RequestOrigin


class LoggedGeneration(NamedTuple):
    """`at`: the monotonic second at which its engine began it. `origin`: the request that it was begun for."""

    name: str
    engine: str
    at: float
    origin: RequestOrigin


class GenerationIndex:
    """All generations of all engines, those of engines that were killed too."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files`: by the engine's name."""
        self._files = files
        self._offsets = dict.fromkeys(files, 0)
        self._generations: dict[str, LoggedGeneration] = {}
        self._ids: dict[str, str] = {}

    def find(self, name: str) -> LoggedGeneration | None:
        if name not in self._generations:
            self._read_new_lines()
        return self._generations.get(name)

    def __len__(self) -> int:
        self._read_new_lines()
        return len(self._generations)

    def matches_id(self, name: str, answer_id: str) -> bool:
        """Whether the answer of this generation has this `id`, as everybody else got it who got one."""
        return self._ids.setdefault(name, answer_id) == answer_id

    def _read_new_lines(self) -> None:
        for engine, path in self._files.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._offsets[engine])
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._offsets[engine] += len(line)
                    said = json.loads(line)
                    origin = RequestOrigin.parse(said["asked_by"])
                    self._generations[said["generation"]] = LoggedGeneration(
                        said["generation"], engine, said["at"], origin
                    )
