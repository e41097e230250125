"""A signal ends a command that has to tidy up, whatever Python was doing when it arrived."""

import signal
from contextlib import suppress

import pytest

from router.commands.termination import Termination


def test_a_signal_exits_with_its_number() -> None:
    with pytest.raises(SystemExit) as caught:
        Termination().on_signal(signal.SIGTERM, None)
    assert caught.value.code == 143


def test_a_signal_whose_exception_was_ignored_exits_at_the_next_check() -> None:
    termination = Termination()
    termination.check()
    with suppress(SystemExit):
        termination.on_signal(signal.SIGHUP, None)
    with pytest.raises(SystemExit) as caught:
        termination.check()
    assert caught.value.code == 129
