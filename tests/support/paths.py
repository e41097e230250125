"""Paths of the project's files."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md", ROOT / "lab" / "README.md"]
)
"""All pages of the documentation."""

CAPTURES: Final = ROOT / "tests" / "data" / "captures"
"""Trimmed responses of real vLLM servers, with their requests."""

FULL_CAPTURES: Final = ROOT / "tests" / "data" / "full_captures"
"""Some of them untrimmed."""
