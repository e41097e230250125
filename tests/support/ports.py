"""TCP ports for servers that tests start."""

import itertools
import os
import random
import socket
from typing import Final

# The kernel takes the ports of outgoing connections, and those for port 0, from 32768 up (ip_local_port_range). It
# could give a port from there to another socket before the server that it was chosen for has bound it. These and the
# ports of their cluster buses, which are 10,000 higher, are below; and above 10,002 to 19,999, which Ray gives to its
# workers.
_PORTS: Final = range(20_000, 22_768)


def _own_ports() -> list[int]:
    """Those of this process: pytest-xdist runs tests in several, which must not choose the same one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    return random.sample(own, len(own))


_candidates: Final = itertools.cycle(_own_ports())


def free_port() -> int:
    """A port of the loopback address that nothing listens on; the next calls in this process give others."""
    return next(port for port in _candidates if is_free(port))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do, so that a port counts as free while connections of an earlier server are in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
