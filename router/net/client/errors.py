"""What can go wrong with an engine: errors of sockets, TLS and parsers are converted to these."""

import errno
from typing import Final

MAX_CAUSE: Final = 100
"""Characters of the operating system's own words."""

_REFUSED: Final = f"[Errno {errno.ECONNREFUSED}]"


class EngineError(Exception):
    """A request to an engine failed. `reason` is a metric label, the message a sentence for people.

    `retry_after`: seconds to wait before the next request, if the engine gave them.
    `refusal`: the error for the client, where the request itself is at fault or the engine lacks what it names.
    `detail`: the engine's own message, without secrets and addresses; empty if it sent none.
    """

    def __init__(
        self,
        reason: str,
        message: str,
        retry_after: float | None = None,
        refusal: Exception | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
        self.refusal = refusal
        self.detail = detail

    @property
    def full_message(self) -> str:
        """For the log: the message, and the engine's own."""
        return f"{self}: {self.detail}" if self.detail else str(self)


def unreachable() -> EngineError:
    return EngineError("connect", "cannot connect to the engine")


def is_refused(error: EngineError) -> bool:
    """Whether nothing accepts connections at the address, though the machine answers."""
    # By the text: of a name with several addresses, asyncio raises one OSError with the texts of all.
    cause = error.__cause__
    return error.reason == "connect" and (isinstance(cause, FileNotFoundError) or _REFUSED in str(cause))


def describe_cause(error: EngineError) -> str:
    """Why an engine is down, in a few words: without the address, which the engine's name stands for."""
    if is_refused(error):
        return "connection refused"
    cause = error.__cause__
    if error.reason == "connect" and isinstance(cause, TimeoutError):
        return "no connection in time"
    if error.reason == "connect" and isinstance(cause, OSError) and cause.strerror:
        return f"cannot connect: {cause.strerror[:MAX_CAUSE]}"
    return str(error)


def out_of_resources(cause: str) -> EngineError:
    """The connection could not be opened because this machine lacks a resource; see router.net.local_errors."""
    return EngineError("local", f"the router cannot open a connection: {cause}")


def timed_out() -> EngineError:
    return EngineError("timeout", "timeout at the engine")


def slow_response() -> EngineError:
    """A timeout at an engine that works: it has made progress since the last byte of this response."""
    return EngineError("slow", "the engine works, and did not respond in time")


def engine_lost() -> EngineError:
    return EngineError("lost", "the engine does not answer its checks")


def broken_off() -> EngineError:
    return EngineError("broken-off", "the engine ended its response early")


def connection_reset() -> EngineError:
    return EngineError("reset", "the connection to the engine was lost")
