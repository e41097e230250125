"""The limit of open files is checked before a load starts."""

import resource

import pytest

from benchmarks.descriptors import OTHERS, TooFewDescriptorsError, raise_descriptor_limit


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits that were set; this process keeps its own. The hard limit is 4,128."""
    was_set: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (1024, 4128))
    monkeypatch.setattr(resource, "setrlimit", lambda _which, limits: was_set.append(limits))
    return was_set


def test_the_soft_limit_becomes_the_hard_one(limits: list[tuple[int, int]]) -> None:
    raise_descriptor_limit(4128 - OTHERS)
    assert limits == [(4128, 4128)]


def test_a_hard_limit_that_is_too_low_is_an_error_that_says_what_to_do(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(TooFewDescriptorsError, match=r"4129 open files are needed.*4128.*ulimit -Hn 4129"):
        raise_descriptor_limit(4129 - OTHERS)
    assert limits == []
