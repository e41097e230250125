"""Which process listens on a port, and what it is, from Linux' /proc. Elsewhere nothing is known.

/proc/net/tcp lists each socket with its inode; the processes that have it open show it among their descriptors, as
`socket:[INODE]`. The descriptors of other users' processes are readable only for root.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from engines.preflight.observations import Process

PROC: Final = Path("/proc")

_LISTENING: Final = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h
_INIT: Final = 1
_MAX_COMMAND: Final = 120  # characters


def listeners(port: int, proc: Path = PROC) -> tuple[Process, ...]:
    """The processes that this user may see listening on a TCP port, on any address, by pid."""
    inodes = set(_listening_inodes(port, proc))
    if not inodes:
        return ()
    pids = sorted(pid for pid in _pids(proc) if not inodes.isdisjoint(_socket_inodes(pid, proc)))
    return tuple(process for pid in pids if (process := describe(pid, proc)) is not None)


def describe(pid: int, proc: Path = PROC) -> Process | None:
    """None if it has exited."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        # The name is in parentheses and may contain any character, so the fields are counted from its end.
        name, _, fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    # Without its options, which may contain keys.
    program = itertools.takewhile(lambda word: not word.startswith("--"), words)
    command = " ".join(program).strip() or name.partition("(")[2]
    if len(command) > _MAX_COMMAND:
        command = command[: _MAX_COMMAND - 1] + "…"
    return Process(pid, command, is_orphan=fields.split()[1] == str(_INIT))


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        try:
            lines = (proc / "self" / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _pids(proc: Path) -> Iterator[int]:
    return (int(folder.name) for folder in proc.iterdir() if folder.name.isdecimal())


def _socket_inodes(pid: int, proc: Path) -> Iterator[str]:
    try:
        descriptors = list((proc / str(pid) / "fd").iterdir())
    except OSError:  # it has exited, or belongs to another user
        return
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").removesuffix("]")
