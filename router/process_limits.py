"""What a server process may take: file descriptors, how many of them clients may have, and digits of an integer."""

import contextlib
import resource
import sys
from typing import Final

MAX_DESCRIPTORS: Final = 1 << 20
"""Descriptors that a process asks for at most: some kernels keep a table of as many as it may have."""

_RESERVED_DESCRIPTORS: Final = 64
"""Descriptors for what is neither a client nor an engine: Redis, logs, metrics, the listening socket, the resolver."""

_MAX_DIGITS: Final = 640
"""Digits of an integer in JSON, the least that Python can be told. Reading n digits takes n^2 steps, and with Python's
default of 4300, a body of 4 MiB could hold the loop for half a second."""


def raise_descriptor_limit() -> int:
    """Raises the soft limit to the hard one, as far as MAX_DESCRIPTORS; the descriptors that there may be now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS refuses more than the kernel's own bound
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def max_connections(descriptors: int) -> int:
    """How many clients may be connected: each may ask for what takes another connection to an engine."""
    return max(1, (descriptors - _RESERVED_DESCRIPTORS) // 2)


def limit_integer_digits() -> None:
    """From now on, an integer of more digits is an error, in JSON too."""
    sys.set_int_max_str_digits(_MAX_DIGITS)
