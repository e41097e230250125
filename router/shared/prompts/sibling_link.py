"""A link between the workers of one router that needs no Redis: datagrams on Unix sockets in the workers' directory."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from router.shared.prompts.prompt_records import RecordLink

log = logging.getLogger("roundhouse.engines")

_MAX_MESSAGE: Final = 1 << 18  # bytes
_MAX_READS: Final = 64  # in one turn of the event loop


class SiblingLink:
    """The link of one worker. A message is lost if a worker does not read as fast as it is sent to, or is too long."""

    def __init__(self, directory: Path, worker: int, workers: int) -> None:
        self._own = directory / f"prompts-{worker}"
        self._others = [str(directory / f"prompts-{number}") for number in range(workers) if number != worker]
        self._socket: socket.socket | None = None
        self._on_message: Callable[[bytes], None] = lambda _: None

    @property
    def has_others(self) -> bool:
        return bool(self._others)

    @property
    def up(self) -> bool:
        return self._socket is not None

    def start(self, on_message: Callable[[bytes], None]) -> None:
        if not self._others:
            return
        self._on_message = on_message
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._own.unlink(missing_ok=True)  # of a worker that died
            receiver.bind(str(self._own))
        except OSError as error:  # the path of the directory is too long, for example
            receiver.close()
            log.warning("without Redis, the workers choose engines without each other's prompts: %s", error)
            return
        receiver.setblocking(False)
        self._socket = receiver
        asyncio.get_running_loop().add_reader(receiver, self._read)

    def publish(self, message: bytes) -> None:
        if self._socket is None:
            return
        for other in self._others:
            with contextlib.suppress(OSError):  # it does not run now, or has not read what it got before
                self._socket.sendto(message, other)

    def stop(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._own.unlink(missing_ok=True)

    def _read(self) -> None:
        for _ in range(_MAX_READS):
            if self._socket is None:
                return
            try:
                message = self._socket.recv(_MAX_MESSAGE)
            except OSError:
                return
            self._on_message(message)


NO_SIBLINGS: Final = SiblingLink(Path(), 0, 1)
"""Of a router with one process."""


class FirstUpLink:
    """The first link that is up."""

    def __init__(self, *links: RecordLink) -> None:
        self._links = links

    @property
    def up(self) -> bool:
        return any(link.up for link in self._links)

    def publish(self, message: bytes) -> None:
        link = next((link for link in self._links if link.up), None)
        if link is not None:
            link.publish(message)
