"""Commands to Redis, and their encoding on the wire."""

from collections.abc import Callable
from typing import Final

import hiredis

Arg = bytes | str | int | float
Command = tuple[Arg, ...]
"""A command's name and its arguments."""


EncodedCommand = bytes
"""A command as bytes on the wire, for commands that are sent often; see `command_template`."""


class AfterPrevious(Command):
    """See `after_previous`."""

    __slots__ = ()


class EncodedAfterPrevious(bytes):
    """See `after_previous`."""

    __slots__ = ()


def after_previous(command: Command | EncodedCommand) -> Command | EncodedCommand:
    """Marks a command to be executed after all commands before it in the batch, on whichever servers those are.

    In a cluster it may also run after later commands of the same key.
    """
    return EncodedAfterPrevious(command) if isinstance(command, bytes) else AfterPrevious(command)


encode_command: Final[Callable[[Command], bytes]] = hiredis.pack_command  # type: ignore[assignment]
"""A command as bytes on the wire."""


def command_template(*args: Arg | None) -> bytes:
    """An encoded command to be completed with `%`: each argument that is None takes its length, then its bytes.

    That costs a third of encoding the whole command.
    """
    return b"*%d\r\n" % len(args) + template_part(*args)


def template_part(*args: Arg | None) -> bytes:
    """Some arguments of such a template. A template `*%d` plus parts takes the number of all arguments first."""
    return b"".join([b"$%d\r\n%b\r\n" if word is None else _word(word).replace(b"%", b"%%") for word in args])


def _word(word: Arg) -> bytes:
    return encode_command((word,)).partition(b"\r\n")[2]
