"""A static check is one test over all files: it fails with the list of what it found."""

from collections.abc import Iterable

import pytest


def assert_none(offenders: Iterable[str]) -> None:
    """Fails with a line for each offender; of the two lists of an `assert`, pytest would shorten the output."""
    found = list(offenders)
    if found:
        pytest.fail("\n".join(found), pytrace=False)
