"""Limits of a server process: file descriptors, the share of them for clients, and digits of an integer."""

import contextlib
import resource
import sys
from typing import Final

MAX_DESCRIPTORS: Final = 1 << 20
"""The most descriptors that a process asks for: some kernels allocate a table for as many as are allowed."""

_RESERVED_DESCRIPTORS: Final = 64
"""Descriptors for neither clients nor engines: Redis, logs, metrics, the listening socket, DNS."""

_MAX_DIGITS: Final = 640
"""Digits of an integer in JSON; Python accepts no lower limit. Parsing n digits takes n^2 steps: with Python's default
of 4300, a body of 4 MiB could block the event loop for half a second."""


def raise_descriptor_limit() -> int:
    """Raises the soft limit to the hard one, up to MAX_DESCRIPTORS; returns the limit that then applies."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses more than the kernel's own limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def max_connections(descriptors: int) -> int:
    """How many clients may be connected: a request of each may need a second descriptor, to an engine."""
    return max(1, (descriptors - _RESERVED_DESCRIPTORS) // 2)


def limit_integer_digits() -> None:
    """Makes longer integers an error in the whole process, in JSON too."""
    sys.set_int_max_str_digits(_MAX_DIGITS)
