"""The GPUs whose engines take turns."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from router.api.admin.gpus import Gpus
from router.core.resilience.gpu_turns import TurnRules
from router.flow.gpu.engine_processes import EngineProcesses, LaunchedSleep, ProcessSleep
from router.flow.gpu.turn_switcher import GroupEngine, TurnSwitcher
from router.flow.gpu.turn_taker import Demand, TurnTaker
from router.net.redis.clock import RedisClock
from router.process.process_state import ProcessState
from router.process.wiring.engine_pool import EnginePool
from router.process.wiring.live_configuration import LiveConfiguration
from router.process.wiring.redis_link import RedisLink
from router.settings import Settings
from router.settings.tables import EngineSettings, GpuSettings
from router.shared.engines.gpu_groups import GpuGroups
from router.upstream.client import EngineClient
from router.upstream.engine import Engine
from router.upstream.probe import EngineProbe
from router.upstream.sleep.engine_sleep import EngineSleep, VllmSleep
from router.upstream.sleep.sleep_calls import SleepByCalls


class GpuTurns(NamedTuple):
    """`gpus`: for people."""

    takers: Sequence[TurnTaker]
    gpus: Gpus


def build_gpu_turns(
    settings: Settings, process_state: ProcessState, redis: RedisLink, live: Sequence[LiveConfiguration],
    engines: EnginePool, probe: EngineProbe,
) -> GpuTurns:  # fmt: skip
    records = GpuGroups(redis.pipeline, process_state.identity.id)
    tables = {engine.name: engine for engine in settings.engine}

    def pools() -> list[EnginePool]:
        """Those of earlier configurations, whose requests go on, too."""
        earlier = [each.engines for each in live if each.engines is not engines]
        return [engines, *earlier]

    def set_rest(name: str, rest: str) -> None:
        for engine in _engines(pools(), name):
            engine.set_rest(rest)
            prefill = process_state.prefills.known(engine.id)
            if prefill is not None and rest == "asleep":
                prefill.forget()  # its prefix cache is empty when it wakes up

    def build(gpu: GpuSettings) -> TurnTaker:
        processes = EngineProcesses()
        members = {
            name: GroupEngine(
                engines.catalog.engines[name], gpu.need(tables[name]), _sleep(tables[name], engines.client, processes)
            )
            for name in gpu.engines
        }
        switcher = TurnSwitcher(
            gpu.name,
            members,
            TurnRules(gpu.capacity, gpu.min_awake, gpu.max_wait),
            records,
            now=redis.clock.now,
            record_switch=partial(process_state.telemetry.record_gpu_switch, gpu.name),
        )
        process_state.telemetry.expect_gpu_switches(gpu.name, gpu.engines)
        return TurnTaker(
            gpu.name,
            members,
            records,
            switcher,
            processes,
            demand=lambda engine: _demand(engine, pools(), redis.clock),
            set_rest=set_rest,
            now=redis.clock.now,
            on_awake=probe.check_one,
        )

    takers = [build(gpu) for gpu in settings.gpu]
    return GpuTurns(takers, Gpus(takers, records, redis.clock.now))


def _demand(engine: Engine, pools: Sequence[EnginePool], clock: RedisClock) -> Demand:
    if engine.drained:  # an operator wants no requests there
        return Demand(in_flight=sum(each.in_flight for each in _engines(pools, engine.name)))
    waits = [each.waking.longest_waits(engine.model) for each in pools]
    return Demand(
        in_flight=sum(each.in_flight for each in _engines(pools, engine.name)),
        lines=sum(each.begun_lines.at_engine(engine.name) for each in pools),
        asked_at=_earliest([people for people, _ in waits], clock),
        line_at=_earliest([lines for _, lines in waits], clock),
    )


def _engines(pools: Iterable[EnginePool], name: str) -> list[Engine]:
    """Each once: an engine whose settings are the same is the same in all."""
    found = (each.catalog.engines.get(name) for each in pools)
    return list({id(engine): engine for engine in found if engine is not None}.values())


def _earliest(waits: Sequence[float | None], clock: RedisClock) -> float | None:
    """By Redis' clock."""
    known = [since for since in waits if since is not None]
    return clock.to_redis_time(min(known)) if known else None


def _sleep(table: EngineSettings, client: EngineClient, processes: EngineProcesses) -> EngineSleep:
    if table.sleep == "process":
        return ProcessSleep(processes)
    if table.sleep_call is not None and table.wake_call is not None:
        return SleepByCalls(client, sleep=table.sleep_call, wake=table.wake_call)
    sleep = VllmSleep(client, table.sleep_level)
    return sleep if table.launch is None else LaunchedSleep(sleep, processes)
