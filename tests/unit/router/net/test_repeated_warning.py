"""A line at the start of a state, then one a minute."""

import logging

import pytest

from router.net.repeated_warning import INTERVAL, RepeatedWarning


def test_a_state_that_lasts_is_logged_at_its_start_and_then_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    warning = RepeatedWarning(logging.getLogger("roundhouse.test"), clock=lambda: now[0])
    for _ in range(3):
        warning.log("full: %s", "so")
    now[0] += INTERVAL
    warning.log("full: %s", "so")
    warning.reset()
    warning.log("full: %s", "again")
    assert caplog.messages == ["full: so", "full: so (2 times more since the last line)", "full: again"]
