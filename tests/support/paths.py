"""Where the files of the project are."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CAPTURES: Final = ROOT / "tests" / "data" / "captures"
"""Trimmed responses of real vLLM servers, with the requests that led to them."""

FULL_CAPTURES: Final = ROOT / "tests" / "data" / "full_captures"
"""Some of them as they came, with nothing left out."""
