"""How many engines are lost to equal requests that end them. `python -m tests.simulation.poisons`.

Each scenario is a world of its own, with six engines. test_poisons.py has what is expected.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.simulation.silence import SilenceWorld, write_outcomes  # the first import: it installs the clock

# isort: split
from tests.simulation.clock import CLOCK
from tests.simulation.engine_answers import EngineRequest
from tests.simulation.engine_losses import error_code
from tests.simulation.engine_model import GenerationScript

POISON: Final = 2
LONG: Final = 4
ENGINES: Final = 6


class PoisonWorld(SilenceWorld):
    """An engine ends so many seconds after it got the request as `waits` says, in the order of the attempts."""

    def _script(self, random: Random, request: EngineRequest) -> GenerationScript:
        script = super()._script(random, request)
        if request.question == POISON:
            script.exits_after = 0
        return script

    def poison(self, router: int = 0, *, cache_control: str = "no-store") -> None:
        self.ask("acme", POISON, self.routers[router], stream=False, cache_control=cache_control)

    def outcome(self) -> dict[Any, list[Any]]:
        exits = [fault.target for fault in self.history.faults if fault.kind == "exit"]
        poisons = [record for record in self.history.requests if record.question == POISON]
        return {"lost": [len(exits)], "errors": sorted({error_code(record) for record in poisons})}


def shared_by_two_routers() -> PoisonWorld:
    world = PoisonWorld(ENGINES, routers=2)
    world.waits[POISON] = [[1.0]]
    world.poison(0, cache_control="")
    world.poison(1, cache_control="")
    return world


def not_shared_by_two_routers() -> PoisonWorld:
    world = PoisonWorld(ENGINES, routers=2)
    world.waits[POISON] = [[1.0], [1.3]]
    world.poison(0)
    world.poison(1)
    return world


def repeated_at_another_router() -> PoisonWorld:
    world = PoisonWorld(ENGINES, routers=2)
    world.waits[POISON] = [[1.0]]
    world.poison(0)
    world.after(5.0, lambda: world.poison(1))
    world.loop.run(CLOCK.now + 6.0)
    return world


def not_shared_at_one_router() -> PoisonWorld:
    world = PoisonWorld(ENGINES)
    world.waits[POISON] = [[1.0], [1.3]]
    for _ in range(2):
        world.poison()
    return world


def at_one_instant_at_one_router() -> PoisonWorld:
    world = PoisonWorld(ENGINES)
    world.waits[POISON] = [[1.0]]
    for _ in range(4):
        world.poison()
    return world


def repeated_all_the_time() -> PoisonWorld:
    """Its client repeats it each tenth of a second, whatever it gets."""
    world = PoisonWorld(ENGINES)
    world.waits[POISON] = [[0.35]]
    for number in range(100):
        world.after(0.1 * number, lambda: world.poison())
    world.loop.run(CLOCK.now + 11.0)
    return world


def waiting_for_a_slot() -> PoisonWorld:
    """Two are at engines that end, two wait, and then the other engines have room again."""
    world = PoisonWorld(4, slots=1)
    world.waits[POISON] = [[1.0]]
    for number in range(2):
        world.request(LONG + 2 * number, [4.0], stream=False)
    world.loop.run(CLOCK.now + 0.5)
    for _ in range(6):
        world.poison()
    return world


SCENARIOS: Final[tuple[Callable[[], SilenceWorld], ...]] = (
    shared_by_two_routers, not_shared_by_two_routers, repeated_at_another_router, not_shared_at_one_router,
    at_one_instant_at_one_router, repeated_all_the_time, waiting_for_a_slot,
)  # fmt: skip


if __name__ == "__main__":
    write_outcomes(SCENARIOS)
