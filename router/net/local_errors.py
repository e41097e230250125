"""Connection errors that are caused by this machine and say nothing about the server."""

import errno
import os
import socket
from typing import Final

LOCAL_ERRNOS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL))
"""No file descriptor left in the process or in the system, no buffer, no memory, no local address or port."""

_RESOLVER_ERRNOS: Final = frozenset((socket.EAI_MEMORY, socket.EAI_SYSTEM))


def local_cause(error: BaseException) -> str | None:
    """The resource that this machine lacks, in the system's words; None for an error that may be the server's.

    The text contains no address. A resolver without file descriptors only reports a temporary failure (EAI_AGAIN).
    That counts as the server's, unless the process really has no descriptor left.
    """
    if isinstance(error, socket.gaierror):
        if error.errno in _RESOLVER_ERRNOS or (error.errno == socket.EAI_AGAIN and not _has_descriptor()):
            return "no resources left to resolve a name"
        return None
    if isinstance(error, OSError) and error.errno in LOCAL_ERRNOS:
        return os.strerror(error.errno)
    return None


def _has_descriptor() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
