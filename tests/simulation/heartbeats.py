"""What clients of streams get during a long silence, with the default settings.

Called as `python -m tests.simulation.heartbeats`.

It prints a JSON object for each scenario: for each client, its status and what it got, as (seconds, text).
"""

import json
import sys
from typing import Any, Final

from tests.simulation import clock

clock.install()  # before the router is imported

from tests.simulation import world as world_module  # noqa: E402 - see above
from tests.simulation.clients import SimulatedRequest  # noqa: E402 - see above
from tests.simulation.clock import CLOCK  # noqa: E402 - see above
from tests.simulation.engine_answers import EngineRequest  # noqa: E402 - see above
from tests.simulation.engine_model import GenerationScript  # noqa: E402 - see above
from tests.simulation.plan import ScenarioPlan  # noqa: E402 - see above
from tests.simulation.world import World, prepare  # noqa: E402 - see above

_QUIET: Final = ScenarioPlan(
    seconds=0.0, routers=2, engines=1, tenants=1, questions=1, episodes=0, kinds=(), faults=0, purges=False,
    pauses=False, leaves=False, slow_readers=False, ticks=False, token_ids=True, standby=False,
)  # fmt: skip


class _SilentEngines(World):
    """Engines that send nothing for some seconds before each token."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits
        super().__init__(1)

    def _script(self, random: Any, request: EngineRequest) -> GenerationScript:
        script = super()._script(random, request)
        script.waits = list(self._waits)
        return script


def play(waits: list[float], clients: list[tuple[float, int]]) -> list[Any]:
    """`clients`: when each asks, and at which router."""
    world = _SilentEngines(waits)
    received: list[tuple[SimulatedRequest, list[tuple[float, str]]]] = []

    def ask(router: int) -> None:
        request = world.ask("acme", 1, world.routers[router], stream=True)
        got: list[tuple[float, str]] = []
        write = request._write

        def note(data: bytes) -> None:
            got.append((round(CLOCK.now - request.record.started, 1), data.decode()))
            write(data)

        request._write = note  # type: ignore[method-assign]
        received.append((request, got))

    for at, router in clients:
        world.after(at, ask, router)
    world.loop.run(200.0)
    world.close()
    assert not world.loop.defects, world.loop.defects
    return [{"status": request.record.status, "cache": request.record.cache, "got": got} for request, got in received]


def main() -> None:
    setattr(world_module, "draw_plan", lambda *_, **__: _QUIET)  # noqa: B010 - mypy knows it as imported there
    prepare()
    scenarios = {
        "slow first token": play([28.0, 0.1], [(1.0, 0), (2.0, 0), (3.0, 1)]),
        "fast": play([0.1, 0.1], [(1.0, 0)]),
        "never": play([500.0], [(1.0, 0)]),
    }
    sys.stdout.write(json.dumps(scenarios))


if __name__ == "__main__":
    main()
