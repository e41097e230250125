"""`Prefer: wait=N` (RFC 7240, section 4.3)."""

import pytest

from router.core.resilience.wait_preference import parse_wait


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (b"", None),
        (b"wait=10", 10.0),
        (b"respond-async, wait=100", 100.0),
        (b'Wait = "5"; x=y', 5.0),
        (b"wait=1, wait=2", 1.0),
        (b"wait=0", 0.0),
        (b"wait", None),
        (b"wait=-1", None),
        (b"wait=1.5", None),
        (b"wait=1e3", None),
        (b"waiting=3", None),
        (b"wait=" + b"9" * 10, None),
        (b"x" * 600 + b", wait=1", None),
        ("wait=\N{ARABIC-INDIC DIGIT ONE}".encode(), None),
    ],
)
def test_the_first_valid_wait_counts(header: bytes, seconds: float | None) -> None:
    assert parse_wait(header) == seconds
