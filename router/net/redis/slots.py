"""The slot of a command in a cluster, and the map from slots to primaries.

A key belongs to one of 16384 slots, and each slot has one primary at a time (the cluster specification,
https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/).
"""

from collections.abc import Sequence
from typing import Any, Final

import hiredis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from router.net.redis.commands import Command, EncodedCommand
from router.net.redis.errors import is_port
from router.net.redis.url import HostPort

_SCRIPT_COMMANDS: Final = ("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO")
_KEY_SECOND_COMMANDS: Final = ("OBJECT", "XINFO", "XGROUP", "MEMORY")  # name, subcommand, key
_STREAM_READ_COMMANDS: Final = ("XREAD", "XREADGROUP")
_KEYLESS_COMMANDS: Final = (
    "PING",
    "ECHO",
    "PUBLISH",
    "TIME",
    "INFO",
    "DBSIZE",
    "SCRIPT",
    "CLIENT",
    "CONFIG",
    "CLUSTER",
)

SlotMap = list[HostPort | None]
"""The primary of each slot; None for a slot without one."""


def command_slot(command: Command | EncodedCommand) -> int | None:
    """The slot of a command's key; None for a command without a key, which any server can execute."""
    words = _decode_command(command) if isinstance(command, bytes) else command
    name = _to_upper(words[0])
    if name in _KEYLESS_COMMANDS:
        return None
    if name in _SCRIPT_COMMANDS:  # name, script, number of keys, first key
        position = 3 if int(words[2]) else 0
    elif name in _STREAM_READ_COMMANDS:  # ... STREAMS, first key
        position = 1 + [_to_upper(word) for word in words].index("STREAMS")
    else:
        position = 2 if name in _KEY_SECOND_COMMANDS else 1
    if not 0 < position < len(words):
        return None
    key = words[position]
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _decode_command(command: EncodedCommand) -> Sequence[bytes]:
    reader = hiredis.Reader()  # a parser of replies: a command on the wire is an array of strings, as a reply may be
    reader.feed(command)
    words: Sequence[bytes] = reader.gets()
    return words


def parse_slots(reply: Sequence[Any], asked_host: str) -> SlotMap:
    """Parses the reply to CLUSTER SLOTS. A server without a host name in it has that of `asked_host`.

    Raises ValueError for a slot or a port that cannot be one, and other exceptions for a reply of another form.
    """
    owners: SlotMap = [None] * REDIS_CLUSTER_HASH_SLOTS
    for start, stop, primary, *_ in reply:
        name, port = primary[0], primary[1]
        if not 0 <= start <= stop < REDIS_CLUSTER_HASH_SLOTS or not is_port(port):
            raise ValueError("no slot or port")
        host = (name.decode() if name else asked_host, port)
        owners[start : stop + 1] = [host] * (stop + 1 - start)
    return owners


def _to_upper(arg: bytes | str | float) -> str:
    return (arg.decode("latin-1") if isinstance(arg, bytes) else str(arg)).upper()
