"""`roundhouse up` of a scenario: the engines that it starts, announces, watches and switches.

They are processes of the world, as are Redis and the router. The order of the steps is that of engines/up.py.
"""

import asyncio
import contextlib
import io
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

from engines.announcer import Announcer
from engines.fleet import EngineFleet
from engines.launcher import EngineCommand
from engines.launcher_id import launcher_id
from engines.placement.engine_process import EngineProcess
from engines.plan import UpPlan
from engines.process import GRACE_PERIOD
from engines.simulator.__main__ import parse_arguments
from engines.switch.record import read_records, restore
from engines.switch.request import Progress, RollbackRequest, Step, SwitchRequest, SwitchResult
from engines.switch.switcher import Report, Switcher
from router.commands.engines.engine_plan import build_plan
from router.settings import parse
from router.shared.audit.launcher_audit import LauncherAudit
from tests.simulation.loop import VirtualLoop
from tests.simulation.network import SimulatedNetwork
from tests.world.http import open_client
from tests.world.processes import HostedProcess, WorldEngine

WHO: Final = "command line: somebody@somewhere"
"""Who switches."""

_TIMEOUT: Final = 5.0  # seconds; as in engines/up.py


def _ignore(_: Progress) -> None:
    pass


class WorldLauncher(HostedProcess):
    """A launcher of the engines of a configuration, in TOML, whose hosts are names of the world.

    - `output`: its lines for a person.
    - `start` reads which engines were switched, and raises StartError. `stop` ends it as SIGTERM does, and `kill` as
      SIGKILL does: its engines end with it. It can be started again after both.
    """

    def __init__(self, loop: VirtualLoop, network: SimulatedNetwork, name: str, text: str, state: Path) -> None:
        HostedProcess.__init__(self, loop, network, name)
        self.output: list[str] = []
        self.running: dict[str, WorldEngine] = {}
        """The engines that run, by the names of their processes."""
        self.started: list[WorldEngine] = []
        """Those that have run as well."""
        self.loading = 1.0
        """Seconds until an engine that starts answers."""
        self._text = text
        self._state = state
        self._client: httpx.AsyncClient
        self._fleet: EngineFleet | None = None
        self._switcher: Switcher

    @property
    def fleet(self) -> EngineFleet:
        assert self._fleet is not None
        return self._fleet

    async def start(self, text: str | None = None) -> None:
        """`text`: another configuration than before."""
        self._text = text or self._text
        self._renew_process()
        await self.run_inside(self._start())

    async def stop(self) -> None:
        if self._fleet is not None and self.process.is_running:
            await self.run_inside(self._stop(self._fleet))
            super().kill()

    def kill(self) -> None:
        super().kill()
        for engine in self.running.values():
            engine.kill()
        self.running.clear()

    async def switch(
        self, engine: str = "e0", report: Report = _ignore, cancel_at: Step | None = None, **options: Any
    ) -> SwitchResult:
        """Raises SwitchRefusedError and SwitchFailedError, and CancelledError if it is cancelled, as by Ctrl-C."""
        switching = self._switch(SwitchRequest(engine=engine, **options), report, cancel_at)
        result: SwitchResult = await self.run_inside(switching)
        return result

    async def rollback(self, engine: str = "e0") -> SwitchResult:
        result: SwitchResult = await self.run_inside(
            self._switcher.rollback(RollbackRequest(engine=engine), _ignore, WHO)
        )
        return result

    async def _switch(self, request: SwitchRequest, report: Report, cancel_at: Step | None) -> SwitchResult:
        def note(progress: Progress) -> None:
            report(progress)
            if progress.step == cancel_at and not switching.cancelling():  # once: its end also has steps
                switching.cancel()

        switching = asyncio.ensure_future(self._switcher.switch(request, note, WHO))
        return await switching

    async def _start(self) -> None:
        plan = msgspec.json.decode(
            msgspec.json.encode(
                build_plan(parse(self._text, {}), Path("roundhouse.toml"), "simulator", None, with_router=False)
                | {"state": str(self._state)}
            ),
            type=UpPlan,
        )
        self._state.mkdir(exist_ok=True)
        self._client = client = open_client("", _TIMEOUT)
        announcer = Announcer.connect(plan.redis, launcher_id(self._state), self.output.append)
        self._fleet = EngineFleet(
            plan, "simulator", client, announcer, self.output.append, self._print_status, self._create_process
        )
        self._closing = asyncio.ensure_future(_close_at_the_end(self._fleet))
        restored = restore(plan.engines, read_records(self._state))
        self.output += restored.notes

        async def no_lack_of_room(_: object) -> str | None:
            return None

        self._switcher = Switcher(
            self._fleet, restored.records, client, no_lack_of_room, self.output.append, find_port=self._find_port,
            audit=LauncherAudit(plan.redis, self.output.append),
        )  # fmt: skip
        await self._fleet.start(restored.specs, restored.revisions)

    async def _stop(self, fleet: EngineFleet) -> None:
        await self._switcher.aclose()
        await fleet.stop()
        await self._client.aclose()

    def _print_status(self, name: str, what: str) -> None:
        self.output.append(f"{name}: {what}")

    def _create_process(self, name: str, command: EngineCommand, log: Path, url: str) -> EngineProcess:
        return _WorldProcess(name, command, log, url, self)

    def _find_port(self, host: str, first: int, taken: Collection[int]) -> int:
        port = first
        while port in taken or (host, port) in self._network.servers:
            port += 1
        return port

    def new_engine(self, argv: list[str]) -> WorldEngine:
        """The engine of this command line, which does not run yet. Raises SystemExit if the simulator refuses it."""
        arguments = parse_arguments(argv[argv.index("engines.simulator") + 1 :])
        engine = WorldEngine(self._loop, self._network, arguments.host, arguments.settings, arguments.port)
        self.started.append(engine)
        return engine


async def _close_at_the_end(fleet: EngineFleet) -> None:
    """For a launcher that is killed: redis-py warns of connections that are left open."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.gather(fleet._watchdog.aclose(), fleet.announcer._redis.aclose(), fleet.turns._redis.aclose())


class _WorldProcess(EngineProcess):
    """The process of an engine: an engine of the world. Its end is noticed at once."""

    def __init__(self, name: str, command: EngineCommand, log: Path, url: str, launcher: WorldLauncher) -> None:
        super().__init__(name, command.argv, log, command.env, url)
        self._launcher = launcher
        self._engine: WorldEngine | None = None
        self._loading: asyncio.Task[None] | None = None
        self._exit: asyncio.Future[int] | None = None
        self._last_line = ""

    @property
    def is_running(self) -> bool:
        return self._exit is not None and not self._exit.done()

    async def start(self) -> None:
        self._exit = asyncio.get_running_loop().create_future()
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                engine = self._launcher.new_engine(self.argv)
        except SystemExit as refused:
            self._last_line = errors.getvalue()
            self._exit.set_result(int(refused.code or 0))
            return
        self._engine = self._launcher.running[self.name] = engine
        self._loading = asyncio.ensure_future(self._load(engine))

    async def _load(self, engine: WorldEngine) -> None:
        await asyncio.sleep(self._launcher.loading)
        await engine.start()

    async def wait(self) -> int:
        assert self._exit is not None
        return await asyncio.shield(self._exit)

    async def stop(self, grace_period: float = GRACE_PERIOD) -> None:
        self._end(0)

    def kill(self) -> None:
        self._end(-9)

    def read_log_end(self) -> str:
        return self._last_line

    def _end(self, code: int) -> None:
        if self.is_running:
            assert self._exit is not None
            assert self._engine is not None
            assert self._loading is not None
            self._loading.cancel()
            self._launcher.running.pop(self.name)
            self._engine.kill()
            self._exit.set_result(code)
