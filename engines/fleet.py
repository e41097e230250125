"""The engines of one `roundhouse up`: started together, announced to the routers, supervised, and stopped."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx

from engines.announcer import Announcer
from engines.gpu.engine_turns import EngineTurns
from engines.launcher import EngineCommand, Program, engine_command
from engines.placement.choice import engine_process
from engines.placement.engine_process import EngineProcess
from engines.plan import UpPlan
from engines.process import ManagedProcess, StartError
from engines.spec import EngineSpec, GpuSpec
from engines.supervisor import EngineSupervisor
from engines.switch.engine_client import EngineHttp
from engines.switch.replay import WARM_UP_PROMPTS, warm_up
from engines.watchdog.drains import Drains
from engines.watchdog.gpu_sensors import find_gpu_reader, gpu_indices
from engines.watchdog.watchdog import Watchdog, WatchedEngine
from router.shared.engines.announcements import AnnouncedEngine, ModelRevision
from router.shared.engines.launcher import LauncherRedis

_POLL_INTERVAL: Final[Mapping[Program, float]] = {"simulator": 0.1, "vllm": 1.0}
"""Seconds between two checks whether an engine that starts is ready."""

_SLEEP_TIMEOUT: Final = 600.0  # seconds; it copies its weights to the memory of the machine

CreateProcess = Callable[[str, EngineCommand, Path, str], EngineProcess]
"""See engine_process."""


class RunningEngine:
    """An engine with its process and its supervisor. `name` is the one that routers know."""

    def __init__(self, spec: EngineSpec, process: EngineProcess, supervisor: EngineSupervisor) -> None:
        self.name = spec.name
        self.spec = spec
        self.process = process
        self.supervisor = supervisor
        self.supervision: asyncio.Task[None] | None = None
        self.watch: asyncio.Task[None] | None = None  # the watchdog's

    def announcement(self) -> AnnouncedEngine:
        return announcement(self.spec, self.process.url or self.spec.url)


class EngineFleet:
    """The engines that one launcher has started.

    - `start` returns when all engines are ready; they are announced then.
    - `supervise` starts the supervision of an engine, which ends with `stop`, `pause` or `end`, and `watch` the
      watchdog's work on it, which ends with these or with `end_watch`.
    - `turns` says which engines sleep while others have their GPU.
    - `engines` may change while the fleet runs: a switch starts an engine beside another of the same name, and replaces
      that one.
    """

    def __init__(
        self, plan: UpPlan, program: Program, client: httpx.AsyncClient, announcer: Announcer,
        report: Callable[[str], None], print_status: Callable[[str, str], None],
        create_process: CreateProcess = engine_process,
    ) -> None:  # fmt: skip
        """`report` gets a line for a person about each event, `print_status` an engine's name and its status."""
        self.plan = plan
        self.program = program
        self.announcer = announcer
        self.engines: dict[str, RunningEngine] = {}
        self._client = client
        self._report = report
        self._print_status = print_status
        self._create_process = create_process
        self._starting: list[EngineProcess] = []
        self._beside: list[RunningEngine] = []  # those that do not serve yet, or not any more
        self._renewal: asyncio.Task[None] | None = None
        self._turn_taking: asyncio.Task[None] | None = None
        self.turns = EngineTurns(plan.gpus, plan.redis, self, report)
        self._watchdog = Watchdog(
            plan.watchdog, engines=plan.engines, client=client, redis_url=plan.redis, announcer=announcer,
            read_gpus=find_gpu_reader() if program == "vllm" else None, report=report,
        )  # fmt: skip

    # -- start and stop -----------------------------------------------------------------------------------------------

    async def start(self, specs: Sequence[EngineSpec], revisions: Mapping[str, ModelRevision]) -> None:
        """`revisions`: of the models of these engines.

        Raises StartError for the first engine that cannot be started.
        """

        shared = {name for gpu in self.plan.gpus for name in gpu.engines}
        by_name = {spec.name: spec for spec in specs}
        # Before an engine can answer: a router with another revision would store its answers under that one.
        await self.announcer.announce(revisions=revisions)
        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    if spec.name not in shared:
                        group.create_task(self._start_first(spec))
                for gpu in self.plan.gpus:
                    own = [by_name[name] for name in gpu.engines if name in by_name]
                    group.create_task(self._start_in_turns(gpu, own))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # if one engine fails to start, the task group cancels the others
        announcements = [engine.announcement() for engine in self.engines.values()]
        await self.announcer.announce(*announcements, revisions=revisions)
        self._renewal = asyncio.ensure_future(self.announcer.run())
        for engine in self.engines.values():
            if not self.turns.is_resting(engine.name):
                self.supervise(engine)
                self.watch(engine)
        self._turn_taking = asyncio.ensure_future(self.turns.run())

    async def _start_first(self, spec: EngineSpec) -> None:
        self._print_status(spec.name, f"starting ({self.command(spec).description})")
        engine = self.engines[spec.name] = await self.start_engine(spec)
        await self._warm_up(spec, engine.process.url)
        self._print_status(spec.name, "ready")

    async def _start_in_turns(self, gpu: GpuSpec, specs: Sequence[EngineSpec]) -> None:
        """The engines of a GPU: first those that are to sleep, each of which makes room for the next one."""
        awake = await self.turns.first_awake(gpu, [spec.name for spec in specs])
        # vLLM refuses to start without enough free memory, so the one that stays awake is the last.
        for spec in sorted(specs, key=lambda spec: spec.name in awake):
            self.turns.begin(spec.name, is_awake=spec.name in awake)
            if spec.name in awake:
                await self._start_first(spec)
            elif spec.sleep == "process":
                self.engines[spec.name] = self._new_engine(spec)
                self._print_status(spec.name, "asleep: its process starts when it is needed")
            else:
                await self._start_first(spec)
                await self._put_to_sleep(spec, self.engines[spec.name].process.url)
                self._print_status(spec.name, "asleep")

    async def _put_to_sleep(self, spec: EngineSpec, url: str | None) -> None:
        """By vLLM's endpoint. Raises StartError."""
        query = {"level": str(spec.sleep_level), "mode": "wait"}
        try:
            response = await self._client.post(f"{url}/sleep", params=query, timeout=_SLEEP_TIMEOUT)
            problem = "" if response.status_code == httpx.codes.OK else f"status {response.status_code}"
        except httpx.HTTPError as error:
            problem = repr(error)
        if problem:
            raise StartError(f"{spec.name}: it does not fall asleep: {problem} of /sleep")

    async def start_engine(self, spec: EngineSpec, process_name: str | None = None) -> RunningEngine:
        """Returns when it is ready; it is not announced and not supervised yet.

        `process_name`: of its log, by default the engine's name. Raises StartError; then nothing of it is left.
        """
        engine = self._new_engine(spec, process_name)
        process = engine.process
        self._starting.append(process)  # stays after a cancellation, so that `stop` ends it
        try:
            await engine.supervisor.start()
        except StartError:
            self._starting.remove(process)
            raise
        self._starting.remove(process)
        return engine

    def _new_engine(self, spec: EngineSpec, process_name: str | None = None) -> RunningEngine:
        """It does not run yet."""
        command = self.command(spec)
        log = Path(self.plan.state) / "logs" / f"{process_name or spec.name}.log"
        process = self._create_process(process_name or spec.name, command, log, spec.url)

        async def ready() -> bool:
            url = process.url
            return url is not None and await is_http_ready(self._client, f"{url}/health")

        async def on_restarted() -> None:
            await self._warm_up(spec, process.url)
            if not spec.url:
                await self._announce_url(spec.name, process.url)

        supervisor = EngineSupervisor(
            process, ready, ready_timeout=command.ready_timeout, poll_interval=_POLL_INTERVAL[self.program],
            report=self._report, on_restarted=on_restarted,
        )  # fmt: skip
        return RunningEngine(spec, process, supervisor)

    async def _warm_up(self, spec: EngineSpec, url: str | None) -> None:
        """Replays recent requests for its model, so that its prefix cache has what they have in common."""
        async with LauncherRedis(self.plan.redis) as redis:
            prompts = await redis.recent_prompts(spec.model, WARM_UP_PROMPTS)
        if prompts and url is not None:
            await warm_up(EngineHttp(self._client, url, spec.served_model), prompts)

    async def _announce_url(self, name: str, url: str | None) -> None:
        """If the engine serves at another URL than before, as after Ray has placed it again."""
        announced = self.announcer.current(name)
        if announced is not None and url is not None and url != announced.url:
            await self.announcer.change(name, url=url)
            self._report(f"{name} is announced at {url}")

    @property
    def drains(self) -> Drains:
        return self._watchdog.drains

    # -- replacement --------------------------------------------------------------------------------------------------

    async def start_beside(self, spec: EngineSpec) -> RunningEngine:
        """As `start_engine`, beside an engine of the same name. Nothing is left of it after a cancellation, either."""
        process_name = self._process_name(spec.name)
        try:
            engine = await self.start_engine(spec, process_name)
        except BaseException:  # also after a cancellation, which leaves the process running
            for process in [process for process in self._starting if process.name == process_name]:
                await process.stop()
                self._starting.remove(process)
            raise
        self._beside.append(engine)
        return engine

    async def replace(self, engine: RunningEngine) -> None:
        """It takes the place of the engine of the same name, which runs on without supervision.

        It is supervised, and not watched yet.
        """
        old = self.engines[engine.name]
        self._beside.remove(engine)
        self._beside.append(old)
        self.engines[engine.name] = engine
        await _end_supervision(old)
        self.supervise(engine)

    async def pause(self, engine: RunningEngine) -> None:
        """Stops its process; it may be started again with its supervisor."""
        await _end_supervision(engine)
        await engine.process.stop()

    async def end(self, engine: RunningEngine) -> None:
        """Stops an engine that does not serve."""
        await self.pause(engine)
        self._beside.remove(engine)

    @property
    def used_ports(self) -> set[int]:
        return {engine.spec.port for engine in (*self.engines.values(), *self._beside)}

    def _process_name(self, engine: str) -> str:
        """The engine's name; beside a process with that name NAME@2 and so on, which no engine can be called."""
        used = {process.name for process in self._processes()}
        number = 1
        while (name := engine if number == 1 else f"{engine}@{number}") in used:
            number += 1
        return name

    # -----------------------------------------------------------------------------------------------------------------

    def command(self, spec: EngineSpec) -> EngineCommand:
        return engine_command(spec, self.program, self.plan)

    def supervise(self, engine: RunningEngine) -> None:
        engine.supervision = asyncio.ensure_future(engine.supervisor.run())

    def watch(self, engine: RunningEngine) -> None:
        gpus = gpu_indices(engine.spec.launch) if engine.spec.launch is not None else ()
        watched = WatchedEngine(engine.spec, lambda: engine.process.url, engine.supervisor.restart, gpus)
        engine.watch = asyncio.ensure_future(self._watchdog.watch(watched))

    # -- turns at a GPU, see TurnFleet --------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        return name in self.engines

    def stops_to_sleep(self, name: str) -> bool:
        return self.engines[name].spec.sleep == "process"

    def is_running(self, name: str) -> bool:
        engine = self.engines[name]
        return engine.process.is_running and not engine.supervisor.is_starting

    async def rouse(self, name: str) -> None:
        engine = self.engines[name]
        if not engine.process.is_running:
            await engine.process.stop()  # what is left of its process group
            await engine.supervisor.start()
            await self._warm_up(engine.spec, engine.process.url)
            if not engine.spec.url:
                await self._announce_url(name, engine.process.url)
        # It has some already if it was to sleep and is wanted again before it was put to sleep.
        if engine.supervision is None:
            self.supervise(engine)
            self.watch(engine)

    async def rest(self, name: str, *, stops: bool) -> None:
        engine = self.engines[name]
        # One that is not ready cannot be put to sleep, and would be awake once it is.
        is_starting = engine.supervisor.is_starting
        await _end_supervision(engine)
        if stops or is_starting:
            await engine.process.stop()

    # -----------------------------------------------------------------------------------------------------------------

    async def end_watch(self, engine: RunningEngine) -> None:
        """If the watchdog has drained it for a restart, it is resumed."""
        watch, engine.watch = engine.watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def stop(self) -> None:
        """Stops all engines, after their supervision: none is started again, and no restart is under way."""
        if self._turn_taking is not None:
            self._turn_taking.cancel()
            await asyncio.gather(self._turn_taking, return_exceptions=True)
        await self.turns.aclose()
        await asyncio.gather(*(_end_supervision(engine) for engine in (*self.engines.values(), *self._beside)))
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await self._watchdog.aclose()
        await self.announcer.aclose()
        # Together: each may take its whole grace period.
        await asyncio.gather(*(process.stop() for process in self._processes()))

    def kill(self) -> None:
        for process in self._processes():
            process.kill()

    def _processes(self) -> list[ManagedProcess]:
        return [*self._starting, *(engine.process for engine in (*self.engines.values(), *self._beside))]


async def _end_supervision(engine: RunningEngine) -> None:
    """Also ends the watchdog's work on it."""
    tasks = [task for task in (engine.watch, engine.supervision) if task is not None]
    engine.watch = engine.supervision = None
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def announcement(spec: EngineSpec, url: str) -> AnnouncedEngine:
    """`url`: where the routers reach the engine."""
    return AnnouncedEngine(
        name=spec.name, model=spec.model, task=spec.task, url=url, served_model=spec.served_model,
        max_model_len=spec.max_model_len, max_in_flight=spec.max_in_flight,
        has_draft=spec.launch is not None and spec.launch.speculation_method is not None,
    )  # fmt: skip


async def is_http_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False
