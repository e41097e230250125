"""What clients of streams get during a long silence, with the default settings where nothing else is said.

Called as `python -m tests.simulation.heartbeats`.

It prints a JSON object for each scenario: for each client, its status and what it got, as (seconds, text).
"""

import json
import sys
from typing import Any, Final

import msgspec

from tests.simulation import clock

clock.install()  # before the router is imported

from router.settings.units import Seconds  # noqa: E402 - see above
from tests.simulation.clients import PATH, SimulatedRequest  # noqa: E402 - see above
from tests.simulation.clock import CLOCK  # noqa: E402 - see above
from tests.simulation.engine_answers import EngineRequest  # noqa: E402 - see above
from tests.simulation.engine_model import GenerationScript  # noqa: E402 - see above
from tests.simulation.plan import ScenarioPlan  # noqa: E402 - see above
from tests.simulation.world import World, prepare  # noqa: E402 - see above

_QUIET: Final = ScenarioPlan(
    seconds=0.0, routers=2, engines=1, tenants=1, questions=1, episodes=0, kinds=(), faults=0, purges=False,
    pauses=False, leaves=False, slow_readers=False, ticks=False, token_ids=True, standby=False,
)  # fmt: skip


class Course(msgspec.Struct):
    """One generation; see GenerationScript."""

    waits: list[float]
    comments_at: tuple[float, ...] = ()
    breaks: str = ""


class Client(msgspec.Struct):
    """A client: when it asks what, and at which router. Odd questions have a small limit of tokens, and so of time."""

    at: float
    router: int = 0
    question: int = 2
    path: str = PATH
    fields: dict[str, Any] = {}


class _SilentEngines(World):
    """Engines whose generations take these courses, in their order; further ones take the last."""

    def __init__(self, courses: list[Course]) -> None:
        self._courses = courses
        super().__init__(1, plan=_QUIET)

    def _script(self, random: Any, request: EngineRequest) -> GenerationScript:
        script = super()._script(random, request)
        course = self._courses.pop(0) if len(self._courses) > 1 else self._courses[0]
        script.waits, script.comments_at, script.breaks = list(course.waits), course.comments_at, course.breaks
        return script

    def reload(self, *, timeouts: dict[str, Seconds], max_in_flight: int | None = None) -> None:
        """Changes settings of all routers."""
        for router in self.routers:
            old = router._settings
            engines = [msgspec.structs.replace(engine, max_in_flight=max_in_flight) for engine in old.engine]
            changed = msgspec.structs.replace(
                old, engine=engines, timeouts=msgspec.structs.replace(old.timeouts, **timeouts)
            )
            self.loop.spawn(router.process, router.application.reload(changed))


def play(courses: list[Course], clients: list[Client], **settings: Any) -> list[Any]:
    world = _SilentEngines(courses)
    received: list[tuple[SimulatedRequest, list[tuple[float, str]]]] = []

    def ask(client: Client) -> None:
        request = world.ask(
            "acme", client.question, world.routers[client.router], stream=True, fields=client.fields,
            path=client.path,
        )  # fmt: skip
        got: list[tuple[float, str]] = []
        write = request._write

        def note(data: bytes) -> None:
            got.append((round(CLOCK.now - request.record.started, 1), data.decode()))
            write(data)

        request._write = note  # type: ignore[method-assign]
        received.append((request, got))

    if settings:
        world.after(0.5, lambda: world.reload(**settings))
    for client in clients:
        world.after(client.at, ask, client)
    world.loop.run(200.0)
    world.close()
    assert not world.loop.defects, world.loop.defects
    return [{"status": request.record.status, "cache": request.record.cache, "got": got} for request, got in received]


def main() -> None:
    prepare()
    three = [Client(1.0), Client(2.0), Client(3.0, router=1)]
    messages = Client(2.0, question=6, path="/v1/messages", fields={"max_tokens": 5})
    in_queue = [Client(1.0), Client(2.0, question=4), messages]
    scenarios = {
        "slow first token": play([Course([28.0, 0.1])], three),
        "fast": play([Course([0.1, 0.1])], [Client(1.0)]),
        "never": play([Course([500.0])], [Client(1.0, question=1)]),
        "comments": play([Course([50.0, 10.0], comments_at=(5.0, 20.0, 24.0, 55.0))], [*three, Client(80.0)]),
        "comments, then another engine": play(
            [Course([25.0], comments_at=(20.0,), breaks="reset"), Course([0.1, 0.1])], [Client(1.0)]
        ),
        "turned off": play(
            [Course([28.0, 0.1], comments_at=(20.0,))], [Client(1.0)], timeouts={"heartbeat": Seconds(0)}
        ),
        "full": play([Course([100.0])], in_queue, timeouts={"queue": Seconds(40)}, max_in_flight=1),
    }
    sys.stdout.write(json.dumps(scenarios))


if __name__ == "__main__":
    main()
