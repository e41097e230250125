"""Commands to Redis, and how they go over the wire."""

from collections.abc import Callable
from typing import Final

import hiredis

Arg = bytes | str | int | float
Command = tuple[Arg, ...]
"""A command's name and its arguments."""


EncodedCommand = bytes
"""A command as it goes over the wire: for what is sent often and is nearly always the same; see `form`."""


class AfterPrevious(Command):
    """See `later`."""

    __slots__ = ()


class EncodedAfterPrevious(bytes):
    """See `later`."""

    __slots__ = ()


def after_previous(command: Command | EncodedCommand) -> Command | EncodedCommand:
    """The same command, to be done when all those given before it have been, whichever servers these belong to.

    It may then come after others of the same key.
    """
    return EncodedAfterPrevious(command) if isinstance(command, bytes) else AfterPrevious(command)


encode_command: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]
"""How a command goes over the wire."""


def command_template(*args: Arg | None) -> bytes:
    """A command over the wire, to be filled with %: with the length, and then the bytes, of each word that is None.

    Filling it takes a third of what packing takes.
    """
    return b"*%d\r\n" % len(args) + template_part(*args)


def template_part(*args: Arg | None) -> bytes:
    """Some words of such a command; what begins with `*%d` and goes on with parts is filled with their number first."""
    return b"".join([b"$%d\r\n%b\r\n" if word is None else _word(word).replace(b"%", b"%%") for word in args])


def _word(word: Arg) -> bytes:
    return encode_command((word,)).partition(b"\r\n")[2]
