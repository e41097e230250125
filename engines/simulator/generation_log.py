"""Gives each generation an id, and logs when it started, so that tests can tell generations apart."""

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from engines.simulator.faults import FaultPlan
from engines.simulator.fields import Body

PLACEHOLDER: Final = "{generation}"
"""Replaced with the generation's name in the text of the fault `say`."""


class GenerationLog:
    """Appends a JSON object per line: `generation`, `at`, and `asked_by`, the request's `safety_identifier`.

    - A line is in the file before a byte of the answer is sent, so it survives a SIGKILL.
    - A name has 12 hex digits and is unique across engines and restarts.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """`clock` gives the seconds of `at`."""
        # Unbuffered: write() returns after the kernel has the line.
        self._file = path.open("ab", buffering=0)
        self._clock = clock

    def start_generation(self, body: Body, plan: FaultPlan) -> FaultPlan:
        """Logs a generation that starts now; returns its plan with the name added."""
        name = secrets.token_hex(6)
        line = {"generation": name, "at": self._clock(), "asked_by": body.get("safety_identifier")}
        self._file.write(json.dumps(line).encode() + b"\n")
        exact = plan.exact.replace(PLACEHOLDER, name) if plan.exact is not None else None
        return replace(plan, exact=exact, generation=name)


def name_to_floats(name: str) -> list[float]:
    """The name as numbers that 32-bit floats represent exactly, so that an embedding can carry it."""
    return [float(int(name[at : at + 4], 16)) for at in range(0, len(name), 4)]
