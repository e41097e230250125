"""Gives each generation an id, and logs when it started, so that tests can tell generations apart."""

import json
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from engines.simulator.control.faults import FaultPlan
from engines.simulator.text.named_answers import NamedAnswer, NamedAnswers
from engines.simulator.text.prompts import Prompt
from engines.simulator.validation.fields import Body

PLACEHOLDER: Final = "{generation}"
"""Replaced with the generation's name in the text of the fault `say`."""


class GenerationLog:
    """Appends a JSON object per line: `generation`, `at`, and `asked_by`, the request's `safety_identifier`.

    - A line is in the file before a byte of the answer is sent, so it survives a SIGKILL.
    - A name has 12 hex digits and is unique across engines and restarts.
    - If the prompt contains the beginning of a named answer for the same `user`, of any engine with a log in the same
      folder, that answer goes on, and the line has `continued` in place of `asked_by`.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """`clock` gives the seconds of `at`."""
        # Unbuffered: write() returns after the kernel has the line.
        self._file = path.open("ab", buffering=0)
        self._clock = clock
        self._answers = NamedAnswers(path)

    def start_generation(self, body: Body, plan: FaultPlan, prompt: Prompt | None) -> FaultPlan:
        """Logs a generation that starts now; returns its plan with the name added.

        `prompt`: None for a request of several prompts or choices, and for one that generates no text.
        """
        user = body.get("user")
        begun = self._answers.find(prompt, user) if prompt is not None and isinstance(user, str) else None
        if begun is not None:
            self._write({"generation": begun.name, "continued": True})
            return replace(plan, exact=begun.text, generation=begun.name)
        name = secrets.token_hex(6)
        line: dict[str, Any] = {"generation": name, "asked_by": body.get("safety_identifier")}
        exact = plan.exact
        if exact is not None and PLACEHOLDER in exact:
            exact = exact.replace(PLACEHOLDER, name)
            if prompt is not None and isinstance(user, str):
                line["answer"] = NamedAnswer.of(name, exact, user, prompt).fields()
        self._write(line)
        return replace(plan, exact=exact, generation=name)

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps({**line, "at": self._clock()}).encode() + b"\n")


def name_to_floats(name: str) -> list[float]:
    """The name as numbers that 32-bit floats represent exactly, so that an embedding can carry it."""
    return [float(int(name[at : at + 4], 16)) for at in range(0, len(name), 4)]
