"""The GPUs whose engines take turns, as /admin/status shows them, and the orders of operators."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from router.errors import ApiError, unavailable
from router.net.redis.pipeline import RedisDownError
from router.shared.engines.gpu_groups import GpuGroups, GroupState, Order, Switch
from router.shared.status.status_documents import GpuEngineRow, GpuRow

_HOUR: Final = 3600.0  # seconds


class Group(Protocol):
    """What is needed of a TurnTaker. `engines`: their names."""

    @property
    def name(self) -> str: ...

    @property
    def engines(self) -> Sequence[str]: ...

    @property
    def state(self) -> GroupState | None: ...


class Gpus:
    """Of one configuration."""

    def __init__(self, groups: Sequence[Group], records: GpuGroups, clock: Callable[[], float]) -> None:
        """`clock`: seconds since the epoch by Redis' clock."""
        self._groups = groups
        self._records = records
        self._clock = clock

    async def read(self) -> tuple[GpuRow, ...]:
        """While Redis is down, without switches."""
        return tuple([await self._row(group) for group in self._groups])

    async def _row(self, group: Group) -> GpuRow:
        try:
            switches = await self._records.switches(group.name)
        except RedisDownError:
            switches = []
        return gpu_row(group, switches, self._clock())

    async def order(self, engine: str, *, sleeps: bool) -> str:
        """The name of the GPU. Raises ApiError."""
        group = next((group for group in self._groups if engine in group.engines), None)
        if group is None:
            raise ApiError(
                409, "This engine takes turns at no [[gpu]] of the configuration.", code="engine_without_gpu"
            )
        try:
            is_taken = await self._records.give_order(group.name, Order(engine, sleeps))
        except RedisDownError as error:
            raise unavailable("Redis is down, so no router decides for this GPU.", code="redis_down") from error
        if not is_taken:
            raise unavailable("No router decides for this GPU at the moment.", code="no_gpu_decision")
        return group.name


def gpu_row(group: Group, switches: Sequence[Switch], now: float) -> GpuRow:
    recent = [switch for switch in switches if now - switch.at < _HOUR]
    state = group.state
    return GpuRow(
        name=group.name,
        engines=tuple(_engine_row(name, state) for name in group.engines),
        switches=sum(not switch.error for switch in recent),
        failed=sum(bool(switch.error) for switch in recent),
        error=next((switch.error for switch in recent if switch.error), ""),
    )


def _engine_row(name: str, state: GroupState | None) -> GpuEngineRow:
    if state is None:
        return GpuEngineRow(engine=name, state="unknown")
    since = state.awake.get(name, state.asleep.get(name))
    return GpuEngineRow(
        engine=name,
        state=state.rest_of(name) or "awake",
        since=None if since is None else round(since, 3),
        wake_seconds=state.wake_seconds.get(name),
    )
