"""Which generations there were: read from the files that the engines write (see docs/simulator.md)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.chaos.workload import Origin


class Generation(NamedTuple):
    """`at`: the monotonic second at which its engine began it. `origin`: the request that it was begun for."""

    name: str
    engine: str
    at: float
    origin: Origin


class GenerationStore:
    """All generations of all engines, those of engines that were killed too."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        """`files`: by the engine's name."""
        self._files = files
        self._read = dict.fromkeys(files, 0)
        self._found: dict[str, Generation] = {}
        self._ids: dict[str, str] = {}

    def find(self, name: str) -> Generation | None:
        if name not in self._found:
            self._read_on()
        return self._found.get(name)

    def __len__(self) -> int:
        self._read_on()
        return len(self._found)

    def has_id(self, name: str, answer_id: str) -> bool:
        """Whether the answer of this generation has this `id`, as everybody else got it who got one."""
        return self._ids.setdefault(name, answer_id) == answer_id

    def _read_on(self) -> None:
        for engine, path in self._files.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(self._read[engine])
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read[engine] += len(line)
                    said = json.loads(line)
                    origin = Origin.of(said["asked_by"])
                    self._found[said["generation"]] = Generation(said["generation"], engine, said["at"], origin)
