"""Paths of the project's files."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CAPTURES: Final = ROOT / "tests" / "data" / "captures"
"""Trimmed responses of real vLLM servers, with their requests."""

FULL_CAPTURES: Final = ROOT / "tests" / "data" / "full_captures"
"""Some of them untrimmed."""
