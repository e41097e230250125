"""What went wrong with an engine, in our words: whatever sockets, TLS and parsers raise ends here."""


class EngineError(Exception):
    """An engine did not do what it was asked. `reason` is a word for metrics, the message a sentence for people.

    `retry_after`: seconds after which it wants to be asked again, if it said so.
    `refusal`: the error for the client, where the request itself is at fault or the engine lacks what it names.
    """

    def __init__(
        self, reason: str, message: str, retry_after: float | None = None, refusal: Exception | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
        self.refusal = refusal


def unreachable() -> EngineError:
    """No connection."""
    return EngineError("connect", "the engine cannot be reached")


def out_of_resources(cause: str) -> EngineError:
    """No connection, for want of something on this side; see router.net.local_errors."""
    return EngineError("local", f"the router cannot connect: {cause}")


def timed_out() -> EngineError:
    """What was waited for did not come in time."""
    return EngineError("timeout", "the engine took too long")


def broken_off() -> EngineError:
    """The answer ended before its end, or cannot be read on."""
    return EngineError("broken-off", "the engine broke its answer off")


def connection_reset() -> EngineError:
    """The connection broke."""
    return EngineError("reset", "the connection to the engine broke")
