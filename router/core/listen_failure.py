"""Why a server cannot listen on an address, and what to do about it: one answer for `check`, `serve` and `up`."""

import errno
from typing import Literal, NamedTuple


class ListenFailure(NamedTuple):
    """`note` says what is wrong with the address, `fix` what to do. `about`: which part of it is to be changed."""

    note: str
    fix: str
    about: Literal["host", "port"] = "port"

    def line(self, host: str, port: int) -> str:
        return f"port {port} of {host}: {self.note}; {self.fix}"


def explain_listen_failure(error_number: int, reason: str, port: int) -> ListenFailure:
    """`error_number`: the system's; negative if the host name has no address. `reason`: the system's text for it."""
    if error_number == errno.EADDRINUSE:
        fix = f"choose another, or end that process: ss -ltnp 'sport = :{port}'"
        return ListenFailure("is used by another process", fix)
    if error_number == errno.EACCES:
        fix = "choose one from 1024 on, or give the router CAP_NET_BIND_SERVICE"
        return ListenFailure("this user may not listen on it", fix)
    if error_number == errno.EADDRNOTAVAIL or error_number < 0:
        fix = "set an address of this machine, or 0.0.0.0 for all"
        return ListenFailure("is no address of this machine", fix, "host")
    return ListenFailure(f"cannot be used: {reason}", "choose another host or port")
