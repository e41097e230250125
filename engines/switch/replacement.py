"""The steps of one switch: until the new engines take over, everything can be undone; after that, nothing needs to be.

Routers learn of the take-over through Redis, and go on with requests that they began before. So the old engines are
stopped only when routers have had `settle` seconds to follow, and the engines' own metrics report no request.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import httpx
import msgspec

from engines.announcer import AnnounceError
from engines.fleet import EngineFleet, RunningEngine
from engines.process import StartError
from engines.spec import EngineSpec
from engines.switch.drain import wait_until_idle
from engines.switch.engine_client import EngineHttp
from engines.switch.plan import SwitchPlan
from engines.switch.prompts import is_deterministic, preview
from engines.switch.replay import WARM_UP_TIMEOUT, replay, warm_up
from engines.switch.request import (
    Limits,
    Progress,
    Step,
    SwitchedEngine,
    SwitchFailedError,
    SwitchRefusedError,
    SwitchResult,
)
from engines.switch.shadow_report import Answer, ShadowReport, compare_answers
from engines.watchdog.drains import DrainError
from router.shared.prompts.recent_prompts import RecentPrompt


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds: `settle` for routers to follow a take-over, `warm_up` for all of its requests."""

    settle: float = 5.0
    warm_up: float = WARM_UP_TIMEOUT


class Replacement:
    """One switch: `prepare`, then `take_over`, then `finish`.

    - If `prepare` or `take_over` fails, or `prepare` is cancelled, the old engines serve as before, unless `restores`
      was set to False: everything is to be stopped then. Both raise SwitchFailedError; `prepare` also
      SwitchRefusedError.
    - `take_over` must not be cancelled: whether Redis has executed it would be unknown.
    - `finish` stops the old engines.
    """

    def __init__(
        self, plan: SwitchPlan, limits: Limits, specs: Sequence[EngineSpec], fleet: EngineFleet,
        *, after: bool, client: httpx.AsyncClient, report: Callable[[Progress], None], timing: Timing,
    ) -> None:  # fmt: skip
        """`specs`: of the new engines. `after`: the old engines are stopped before the new ones start."""
        self._plan = plan
        self._limits = limits
        self._specs = specs
        self._fleet = fleet
        self._after = after
        self._client = client
        self._report = report
        self._timing = timing
        self._old = [fleet.engines[spec.name] for spec in specs]
        self._new: list[RunningEngine] = []
        self._stopped: list[RunningEngine] = []
        self._shadow: ShadowReport | None = None
        self.restores = True

    async def prepare(self, prompts: Sequence[RecentPrompt], shadow: int) -> None:
        """`prompts`: for the warm-up; the first `shadow` of them are replayed at the old and the new engine."""
        shadowed = prompts[:shadow]
        try:
            await self._end_watches()
            before = await self._replay(shadowed, self._old)
            if self._after:
                await self._stop_old_engines()
            await self._start_new_engines()
            await self._check_and_warm_up_all(prompts)
            if shadow:
                self._shadow = _compare(shadowed, before, await self._replay(shadowed, self._new))
            await self._check_health()
        except BaseException:  # also after a cancellation
            await self._undo()
            raise

    async def take_over(self) -> None:
        self._note("take-over", f"model {self._plan.model}, revision {self._plan.revision!r}")
        try:
            await self._fleet.announcer.take_over(
                [new.announcement() for new in self._new], {self._plan.model: self._plan.model_revision()}
            )
        except AnnounceError as error:
            await self._fleet.announcer.renew()  # Redis may have executed it nevertheless
            await self._undo()
            raise SwitchFailedError(str(error)) from None

    async def finish(self) -> SwitchResult:
        for new in self._new:
            await self._fleet.replace(new)
        await asyncio.sleep(self._timing.settle)
        await self._resume()
        for new in self._new:
            self._fleet.watch(new)
        idle = await asyncio.gather(*(self._retire(old) for old in self._old))
        return SwitchResult(
            model=self._plan.model,
            revision=self._plan.revision,
            after=self._after,
            engines=[_describe(new.spec, was_idle) for new, was_idle in zip(self._new, idle, strict=True)],
            shadow=self._shadow,
        )

    # -- before the take-over -----------------------------------------------------------------------------------------

    async def _end_watches(self) -> None:
        # The watchdog would restart an old engine during the switch, and resume one that the switch has drained.
        for old in self._old:
            await self._fleet.end_watch(old)
            if old.supervisor.is_restarting:
                raise SwitchRefusedError(f"{old.name} is being restarted; try again when it is ready")

    async def _stop_old_engines(self) -> None:
        try:
            for old in self._old:
                await self._fleet.drains.drain_for_restart(old.name)
        except DrainError:
            raise SwitchFailedError("Redis does not answer, so routers cannot learn of a drain") from None
        self._note("drain", f"{_names(self._old)}: no new requests")
        for old in self._old:
            if not await self._wait_until_idle(old):
                raise SwitchFailedError(f"{old.name} was not idle after {self._limits.drain_timeout:g} s")
        for old in self._old:
            self._stopped.append(old)
            await self._fleet.pause(old)
            self._note("stop", f"{old.process.name} is stopped")

    async def _start_new_engines(self) -> None:
        self._note("start", ", ".join(f"{spec.name} at {spec.url}" for spec in self._specs))
        starts = [asyncio.ensure_future(self._fleet.start_beside(spec)) for spec in self._specs]
        try:
            self._new = list(await asyncio.gather(*starts))
        except BaseException as error:  # also after a cancellation: those that have started are to be stopped
            for start in starts:
                start.cancel()
            ended = await asyncio.gather(*starts, return_exceptions=True)
            self._new = [engine for engine in ended if isinstance(engine, RunningEngine)]
            if isinstance(error, StartError):
                raise SwitchFailedError(str(error)) from None
            raise

    async def _check_and_warm_up_all(self, prompts: Sequence[RecentPrompt]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for new in self._new:
                    group.create_task(self._check_and_warm_up(new, prompts))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # the task group has cancelled the others

    async def _check_and_warm_up(self, new: RunningEngine, prompts: Sequence[RecentPrompt]) -> None:
        engine = self._http(new)
        await engine.check()
        self._note("check", f"{new.process.name} serves {new.spec.served_model} and answers")
        answered = await warm_up(engine, prompts, self._timing.warm_up)
        self._note("warm-up", f"{new.process.name} has answered {answered} of {len(prompts)} recent requests")

    async def _replay(self, prompts: Sequence[RecentPrompt], engines: Sequence[RunningEngine]) -> list[Answer]:
        """The answers of the one among the engines that was asked for."""
        if not prompts:
            return []
        engine = next(engine for engine in engines if engine.name == self._plan.engine)
        self._note("shadow", f"{len(prompts)} recent requests at {engine.process.name}")
        return await replay(self._http(engine), prompts)

    async def _check_health(self) -> None:
        for new in self._new:
            if not await self._http(new).is_healthy():
                raise SwitchFailedError(f"{new.process.name} was ready and does not answer any more")

    async def _undo(self) -> None:
        for new in self._new:
            await self._fleet.end(new)
        if not self.restores:
            await self._resume()
            return
        for old in self._stopped:
            self._note("start", f"{old.process.name} again")
            try:
                await old.supervisor.start()
            except StartError as error:  # it is started again after a wait, as after an exit
                self._note("start", str(error))
            self._fleet.supervise(old)
        await self._resume()
        for old in self._old:
            self._fleet.watch(old)

    async def _resume(self) -> None:
        if self._after:
            # If Redis is down, the watchdog does it later.
            with contextlib.suppress(DrainError):
                for old in self._old:
                    await self._fleet.drains.resume_after_restart(old.name)

    # -- after the take-over ------------------------------------------------------------------------------------------

    async def _retire(self, old: RunningEngine) -> bool:
        """Whether it was idle when it was stopped."""
        is_idle = await self._wait_until_idle(old)
        if not is_idle:
            # With a SIGTERM, vLLM would leave its streams open and silent, or end their text as if it were complete.
            old.process.kill()
        await self._fleet.end(old)
        self._note("stop", f"{old.process.name} is stopped" + ("" if is_idle else ", with requests running there"))
        return is_idle

    async def _wait_until_idle(self, engine: RunningEngine) -> bool:
        def is_running() -> bool:
            return engine.process.is_running

        return await wait_until_idle(self._http(engine), is_running, self._limits.drain_timeout)

    def _http(self, engine: RunningEngine) -> EngineHttp:
        return EngineHttp(self._client, engine.spec.url, engine.spec.served_model)

    def _note(self, step: Step, message: str) -> None:
        self._report(Progress(step, message))


def _compare(prompts: Sequence[RecentPrompt], old: Sequence[Answer], new: Sequence[Answer]) -> ShadowReport:
    return compare_answers([(preview(prompt), is_deterministic(prompt)) for prompt in prompts], old, new)


def _describe(spec: EngineSpec, was_idle: bool) -> SwitchedEngine:
    assert spec.launch is not None
    return SwitchedEngine(
        name=spec.name, url=spec.url, target=spec.launch.target, draft=spec.launch.draft, stopped_busy=not was_idle
    )


def _names(engines: Sequence[RunningEngine]) -> str:
    return ", ".join(engine.name for engine in engines)
