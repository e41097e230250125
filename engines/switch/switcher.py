"""Serves the requests for a switch and a rollback, one at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import httpx
import msgspec

from engines.fleet import EngineFleet
from engines.process import StartError
from engines.spec import EngineSpec
from engines.switch.plan import EngineState, SwitchPlan, plan_rollback, plan_switch
from engines.switch.ports import free_port
from engines.switch.record import EngineRecord, spec_digest, write_records
from engines.switch.replacement import Replacement, Timing
from engines.switch.replay import WARM_UP_PROMPTS
from engines.switch.request import (
    Limits,
    Progress,
    RollbackRequest,
    SwitchFailedError,
    SwitchRefusedError,
    SwitchRequest,
    SwitchResult,
)
from engines.switch.version import Version, apply_version, configured_version
from router.shared.audit.audit_log import Audit, NoAudit
from router.shared.audit.changes import engines_switched
from router.shared.engines.launcher import LauncherRedis

Report = Callable[[Progress], None]

_TIMING: Final = Timing()
_NO_AUDIT: Final = NoAudit()

Decide = Callable[[Mapping[str, EngineState]], SwitchPlan]
"""Raises SwitchRefusedError."""

NoteSwitch = Callable[[SwitchPlan], Awaitable[None]]
"""Records that a switch has taken effect."""

FindLackOfRoom = Callable[[Sequence[EngineSpec]], Awaitable[str | None]]
"""Why engines cannot start beside those that run; None if they can."""

FindPort = Callable[[str, int, Collection[int]], int]
"""See free_port."""


class Switcher:
    """Replaces engines of `roundhouse up`.

    - `switch` and `rollback` raise SwitchRefusedError, or SwitchFailedError; the old engines are kept then.
    - If their task is cancelled before the take-over, the old engines are kept. After it, the switch is completed.
    """

    def __init__(
        self, fleet: EngineFleet, records: Mapping[str, EngineRecord], client: httpx.AsyncClient,
        find_lack_of_room: FindLackOfRoom, report: Callable[[str], None], timing: Timing = _TIMING,
        find_port: FindPort = free_port, audit: Audit = _NO_AUDIT,
    ) -> None:  # fmt: skip
        """`records`: those in effect. `report` gets lines for the person who runs `up`."""
        self._fleet = fleet
        self._configured = {spec.name: spec for spec in fleet.plan.engines}
        self._records = dict(records)
        self._client = client
        self._find_lack_of_room = find_lack_of_room
        self._report_to_console = report
        self._timing = timing
        self._find_port = find_port
        self._audit = audit
        self._replacement: Replacement | None = None
        self._preparing: asyncio.Task[Any] | None = None
        self._finishing: asyncio.Task[SwitchResult] | None = None

    async def switch(self, request: SwitchRequest, report: Report, actor: str = "") -> SwitchResult:
        """`actor`: who asks for it, for the audit."""
        note = partial(self._note, actor, "switch")
        return await self._run(partial(plan_switch, request), request, request.shadow, report, note)

    async def rollback(self, request: RollbackRequest, report: Report, actor: str = "") -> SwitchResult:
        note = partial(self._note, actor, "rollback")
        return await self._run(partial(plan_rollback, request.engine), request, 0, report, note)

    @property
    def is_switching(self) -> bool:
        return self._preparing is not None or (self._finishing is not None and not self._finishing.done())

    async def aclose(self) -> None:
        """Ends a switch that is under way; the engines are stopped elsewhere."""
        if self._replacement is not None:
            self._replacement.restores = False
        tasks = [task for task in (self._preparing, self._finishing) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, decide: Decide, limits: Limits, shadow: int, report: Report, note: NoteSwitch) -> SwitchResult:
        if self.is_switching:
            raise SwitchRefusedError("another switch is under way")
        self._preparing = asyncio.current_task()
        try:
            async with self._open_redis() as redis:
                plan = decide(await self._states(redis))
                prompts = await redis.recent_prompts(plan.model, max(shadow, WARM_UP_PROMPTS))
            specs = self._new_specs(plan)
            after = limits.after or await self._must_start_after(plan.model, specs)
            replacement = self._replacement = Replacement(
                plan, limits, specs, self._fleet, after=after, client=self._client, report=report,
                timing=self._timing,
            )  # fmt: skip
            await replacement.prepare(prompts, shadow)
            self._finishing = asyncio.get_running_loop().create_task(self._finish(plan, replacement, note))
        finally:
            self._preparing = None
        return await asyncio.shield(self._finishing)

    async def _finish(self, plan: SwitchPlan, replacement: Replacement, note: NoteSwitch) -> SwitchResult:
        await replacement.take_over()
        self._record(plan)
        self._report_to_console(f"model {plan.model}: switched to revision {plan.revision!r}")
        await note(plan)
        return await replacement.finish()

    async def _note(self, actor: str, action: Literal["switch", "rollback"], plan: SwitchPlan) -> None:
        # Here and not where it was asked for: from the take-over on, a switch is completed though its client is gone.
        versions = [f"{name}: {version.target}" for name, version in plan.versions.items()]
        await self._audit.record(actor, engines_switched(action, plan.engine, plan.model, plan.revision, versions))

    async def _must_start_after(self, model: str, specs: Sequence[EngineSpec]) -> bool:
        """Whether the old engines must be stopped first. Raises SwitchRefusedError if nothing else could answer."""
        lack = await self._find_lack_of_room(specs)
        if lack is None:
            return False
        names = {spec.name for spec in specs}
        others = [spec for spec in self._configured.values() if spec.model == model and spec.name not in names]
        if not others and all(spec.fallback is None for spec in specs):
            raise SwitchRefusedError(
                f"{lack}, and nothing else answers for model {model}; with --after, its requests fail meanwhile"
            )
        return True

    def _open_redis(self) -> LauncherRedis:
        return LauncherRedis(self._fleet.plan.redis)

    async def _states(self, redis: LauncherRedis) -> dict[str, EngineState]:
        """All configured engines, and those that other launchers announce."""
        foreign = {
            engine.name: EngineState(name=engine.name, model=engine.model, address=engine.url, version=None)
            for engine in await redis.foreign_engines(self._configured)
        }
        return foreign | {name: self._state_of(name, spec) for name, spec in self._configured.items()}

    def _state_of(self, name: str, spec: EngineSpec) -> EngineState:
        record = self._records.get(name)
        return EngineState(
            name=name,
            model=spec.model,
            address=spec.url,
            version=self._version_of(name) if name in self._fleet.engines else None,
            previous=record.previous if record is not None else None,
            configured_revision=spec.revision,
        )

    def _version_of(self, name: str) -> Version:
        launch = self._fleet.engines[name].spec.launch
        assert launch is not None
        record = self._records.get(name)
        revision = record.version.revision if record is not None else self._configured[name].revision
        return configured_version(launch, revision)

    def _new_specs(self, plan: SwitchPlan) -> list[EngineSpec]:
        """The specs of the new engines, on free ports. Raises SwitchFailedError and SwitchRefusedError."""
        taken = {spec.port for spec in self._configured.values() if spec.name not in plan.versions}
        taken |= self._fleet.used_ports
        specs = []
        for name, version in plan.versions.items():
            spec = self._configured[name]
            if spec.sleep is not None:
                raise SwitchRefusedError(f"engine {name} takes turns at a GPU; no other one can start beside it")
            try:
                port = self._find_port(spec.host, spec.port, taken)
            except StartError as error:
                raise SwitchFailedError(str(error)) from None
            taken.add(port)
            specs.append(apply_version(msgspec.structs.replace(spec, url=_with_port(spec, port)), version))
        return specs

    def _record(self, plan: SwitchPlan) -> None:
        for name, version in plan.versions.items():
            configured = self._configured[name]
            previous = self._version_of(name)
            self._records[name] = EngineRecord(configured=spec_digest(configured), version=version, previous=previous)
        try:
            write_records(Path(self._fleet.plan.state), self._records)
        except OSError as error:
            self._report_to_console(f"cannot write which engines were switched: {error.strerror}")


def _with_port(spec: EngineSpec, port: int) -> str:
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    return urlsplit(spec.url)._replace(netloc=f"{host}:{port}").geturl()
