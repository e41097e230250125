"""The limit of open files (ulimit -n)."""

import resource
from typing import Final

OTHERS: Final = 128
"""Descriptors that a process needs besides the sockets of a load."""


class TooFewDescriptorsError(Exception):
    """The hard limit is too low."""


def raise_descriptor_limit(needed: int) -> None:
    """Raises the soft limit to the hard one; processes that are started afterwards inherit it.

    Raises TooFewDescriptorsError if the hard limit is below `needed` and OTHERS.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed + OTHERS:
        raise TooFewDescriptorsError(
            f"{needed + OTHERS} open files are needed, and the hard limit is {hard}: raise it, as root with "
            f"`ulimit -Hn {needed + OTHERS}`, with LimitNOFILE= in systemd, or with --ulimit nofile= in a container"
        )
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
