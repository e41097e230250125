"""TCP ports for servers that tests start."""

import itertools
import random
import socket
from collections.abc import Iterator
from functools import cache
from typing import Final

# The kernel takes the ports of outgoing connections, and those for port 0, from 32768 up (ip_local_port_range). It
# could give a port from there to another socket before the server that it was chosen for has bound it. These and the
# ports of their cluster buses, which are 10,000 higher, are below; and above 10,002 to 19,999, which Ray gives to its
# workers.
_PORTS: Final = range(20_000, 22_768)
_SHARES: Final = 32
_LOCKS: Final = _PORTS.stop
"""The first port of those that say who has which share. Files would differ with TMPDIR, and stay behind."""


@cache
def _candidates() -> Iterator[int]:
    """Those of this process: others on this machine, of this run of tests or of another, must not choose the same one
    before its server has bound it.
    """
    number = _own_share()
    own = _PORTS[number::_SHARES]
    return itertools.cycle(random.sample(own, len(own)))


def _own_share() -> int:
    """One that no other process has, if there is one; its port stays bound until this process ends."""
    for number in random.sample(range(_SHARES), _SHARES):
        lock = socket.socket()
        try:
            lock.bind(("127.0.0.1", _LOCKS + number))
        except OSError:
            lock.close()
        else:
            lock.detach()
            return number
    return random.randrange(_SHARES)


def free_port() -> int:
    """A port of the loopback address that nothing listens on; the next calls in this process give others."""
    return next(port for port in _candidates() if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do, so that a port counts as free while connections of an earlier server are in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
