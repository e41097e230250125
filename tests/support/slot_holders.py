"""Processes that each hold slots of one engine, as workers do; a test tells them what to do."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from router.upstream.slot_file import SlotFile


def _run(commands: Connection, worker: int, workers: int) -> None:
    file: SlotFile | None = None
    while True:
        try:
            name, *arguments = commands.recv()
        except EOFError:
            return
        if name == "open":
            file = SlotFile(Path(arguments[0]), worker, workers)
            commands.send(None)
            continue
        assert file is not None
        if name == "contend":
            commands.send(_contend(file, Path(arguments[0])))
            continue
        found = getattr(file, name)
        commands.send(found(*arguments) if callable(found) else found)


def _contend(file: SlotFile, occupied: Path) -> int:
    """Takes and frees the only slot until it has had it 300 times, which it returns.

    `occupied`: a folder that exists while a process has the slot. Raises FileExistsError if two have it.
    """
    taken = 0
    while taken < 300:
        if file.take(1, taken):
            occupied.mkdir()
            taken += 1
            occupied.rmdir()
            file.free()
    return taken


class SlotHolder:
    """A process with the SlotFile of one worker; `call` calls its methods and reads its properties."""

    def __init__(self, worker: int, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._commands, end = context.Pipe()
        self._process = context.Process(target=_run, args=(end, worker, workers), daemon=True)
        self._process.start()
        end.close()

    def call(self, name: str, *arguments: Any) -> Any:
        self.start(name, *arguments)
        return self.result()

    def start(self, name: str, *arguments: Any) -> None:
        """As `call`, without waiting for the result."""
        self._commands.send((name, *arguments))

    def result(self) -> Any:
        """Raises EOFError if the process has ended, since the call raised an error."""
        return self._commands.recv()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._commands.close()
