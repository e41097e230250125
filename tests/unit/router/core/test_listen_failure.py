"""Why a server cannot listen, in the words of `check`, `serve` and `up`."""

import errno
import socket

import pytest

from router.core.listen_failure import explain_listen_failure


@pytest.mark.parametrize(
    ("number", "about", "line"),
    [
        (
            errno.EADDRINUSE,
            "port",
            "port 80 of h: is used by another process; choose another, or end that process: ss -ltnp 'sport = :80'",
        ),
        (
            errno.EACCES,
            "port",
            (
                "port 80 of h: this user may not listen on it; choose one from 1024 on, or give the router "
                "CAP_NET_BIND_SERVICE"
            ),
        ),
        (
            errno.EADDRNOTAVAIL,
            "host",
            "port 80 of h: is no address of this machine; set an address of this machine, or 0.0.0.0 for all",
        ),
        (
            socket.EAI_NONAME,
            "host",
            "port 80 of h: is no address of this machine; set an address of this machine, or 0.0.0.0 for all",
        ),
        (errno.EMFILE, "port", "port 80 of h: cannot be used: Too many open files; choose another host or port"),
    ],
)
def test_every_failure_has_a_remedy(number: int, about: str, line: str) -> None:
    failure = explain_listen_failure(number, "Too many open files", 80)
    assert (failure.about, failure.line("h", 80)) == (about, line)
