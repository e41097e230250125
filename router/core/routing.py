"""Which engines may do a piece of work, the best first."""

from collections.abc import Iterable

import msgspec

from router.core.types import EngineTask, Task


class EngineView(msgspec.Struct, frozen=True):
    """What the choice knows of an engine. `up` is None until somebody has asked it; then it may well be up."""

    name: str
    task: EngineTask
    up: bool | None
    in_flight: int
    drained: bool = False


def plan(task: Task, engines: Iterable[EngineView]) -> list[EngineView]:
    """The engines of a model in the order in which they are to be tried.

    One that is known to be down comes last and not never: what is known may be old, and a refused connection costs
    little; one that is drained gets nothing. Before that counts the task (its own, then `any`, then the other's), then
    who has less to do.
    """

    def order(engine: EngineView) -> tuple[bool, int, int, str]:
        distance = 0 if engine.task == task else 1 if engine.task == "any" else 2
        return engine.up is False, distance, engine.in_flight, engine.name

    return sorted((engine for engine in engines if not engine.drained), key=order)
