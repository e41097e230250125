"""A new engine gets a port near the configured one."""

import socket

import pytest

from engines.process import StartError
from engines.switch.ports import free_port


def test_the_first_port_that_is_free_and_not_taken_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used = listener.getsockname()[1]
        port = free_port("127.0.0.1", used, {used + 1})
    assert port > used + 1
    assert free_port("127.0.0.1", used, {used + 1}) == used


def test_without_a_free_port_the_start_fails() -> None:
    with pytest.raises(StartError, match=r"no port of 127\.0\.0\.1 from 65535 on is free"):
        free_port("127.0.0.1", 65535, {65535})
