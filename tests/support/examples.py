"""How many examples Hypothesis tries, for tests that need another number than the others."""

from typing import Final

from hypothesis import settings

EXAMPLES: Final = settings().max_examples
"""Of the profile of this run: `ci`, or `brief` with `make test-interpreted`."""
