"""Reads a router again and again, and draws what it has read."""

import asyncio
import contextlib
import time

from rich.console import Console
from rich.live import Live

from router.commands.admin_client import KeyRefusedError as KeyRefusedError
from router.commands.admin_client import RouterError as RouterError
from router.commands.top.client import Snapshot, StatusClient
from router.commands.top.screen import ScreenEvents, listen
from router.commands.top.view import View, render


async def read_once(url: str, key: str | None) -> Snapshot:
    """Raises RouterError."""
    client = StatusClient(url, key)
    try:
        return await client.read()
    finally:
        await client.aclose()


def print_snapshot(url: str, snapshot: Snapshot) -> None:
    console = Console()
    console.print(
        render(
            View(
                url=url, snapshot=snapshot, problem=None, now=0.0, read_at=0.0, interval=0.0, width=console.width,
                height=None, interactive=False, ascii_only=console.options.ascii_only,
            )
        )
    )  # fmt: skip


async def watch(url: str, key: str | None, interval: float) -> int:
    """Draws until the user quits; returns the exit code. A router that does not answer is asked again."""
    session = _Session(StatusClient(url, key), interval)
    with Live(console=session.console, screen=True, auto_refresh=False, transient=True) as live, listen(session.events):
        tasks = [asyncio.ensure_future(session.read_forever()), asyncio.ensure_future(session.draw_forever(live))]
        quit_ = asyncio.ensure_future(session.events.quit.wait())
        try:
            done, _ = await asyncio.wait([*tasks, quit_], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, quit_):
                task.cancel()
            await asyncio.gather(*tasks, quit_, return_exceptions=True)
            await session.client.aclose()
    for task in done:
        task.result()  # an error of ours is not hidden; the terminal is as it was by now
    return 0


class _Session:
    def __init__(self, client: StatusClient, interval: float) -> None:
        self.client = client
        self.console = Console()
        self.events = ScreenEvents()
        self._interval = interval
        self._snapshot: Snapshot | None = None
        self._problem: str | None = None
        self._read_at: float | None = None

    async def read_forever(self) -> None:
        while True:
            try:
                self._snapshot = await self.client.read()
            except RouterError as error:
                self._problem = str(error)
            else:
                self._problem, self._read_at = None, time.monotonic()
            self.events.redraw.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.events.refresh.wait(), self._interval)
            self.events.refresh.clear()

    async def draw_forever(self, live: Live) -> None:
        while True:
            self.events.redraw.clear()
            live.update(render(self._view()), refresh=True)
            await self.events.redraw.wait()

    def _view(self) -> View:
        width, height = self.console.size
        return View(
            url=self.client.url, snapshot=self._snapshot, problem=self._problem, now=time.monotonic(),
            read_at=self._read_at, interval=self._interval, width=width, height=height, interactive=True,
            ascii_only=self.console.options.ascii_only,
        )  # fmt: skip
