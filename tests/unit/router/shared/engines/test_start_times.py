"""The durations of starts in Redis."""

from typing import Any

import pytest

from router.shared.engines.start_times import MAX_STARTS, add_commands, decode_starts, read_command


def test_only_the_last_starts_are_kept_and_they_expire() -> None:
    push, trim, expire = add_commands("llama", 12.34)
    key = "rh:1:router:starts:llama"
    assert push == ("LPUSH", key, "12.3")
    assert trim == ("LTRIM", key, 0, MAX_STARTS - 1)
    assert expire[:2] == ("EXPIRE", key)
    assert read_command("llama") == ("LRANGE", key, 0, MAX_STARTS - 1)


@pytest.mark.parametrize(
    "reply", [None, b"12", ValueError("WRONGTYPE"), [b"-1", b"nan", b"inf", b"x", b"1" * 30, None]]
)
def test_what_is_no_duration_is_left_out(reply: Any) -> None:
    assert decode_starts(reply) == []


def test_durations_are_seconds() -> None:
    assert decode_starts([b"12.5", b"x", b"3"]) == [12.5, 3.0]
