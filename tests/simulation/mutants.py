"""Mends taken out again, each by its name, to see that the simulation finds what they mend."""

from collections.abc import Callable
from typing import Final

Mutant = Callable[[], None]
"""Changes the router's classes, in an interpreter that runs nothing else."""

MUTANTS: Final[dict[str, Mutant]] = {}
