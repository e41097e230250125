"""Engines that are silent, at default settings: what their clients get, and when. `python -m tests.simulation.silence`.

Each scenario is a world of its own with one router; it prints a line of JSON with the outcome of each request. A
minute of silence takes some milliseconds. test_silence.py has what is expected.
"""

import json
import logging
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from tests.simulation import clock

clock.install()
# After `install`: the import of the router binds the clock functions.
from tests.simulation.clock import CLOCK  # noqa: E402
from tests.simulation.engine_answers import EngineRequest  # noqa: E402
from tests.simulation.engine_model import GenerationScript  # noqa: E402
from tests.simulation.plan import ScenarioPlan  # noqa: E402
from tests.simulation.world import World, prepare  # noqa: E402

START: Final = 1.0
TOOLS: Final = {"tools": [{"type": "function", "function": {"name": "write", "parameters": {"type": "object"}}}]}


class SilenceWorld(World):
    """`waits`: the course of each generation of a question, in their order; of further ones, that of the last."""

    def __init__(self, engines: int, *, routers: int = 1, slots: int = 0) -> None:
        plan = ScenarioPlan(
            seconds=0.0, routers=routers, engines=engines, tenants=1, questions=1, episodes=0, kinds=(), faults=0,
            purges=False, pauses=False, leaves=False, slow_readers=False, ticks=False, token_ids=True, standby=False,
            slots=slots,
        )  # fmt: skip
        self.waits: dict[int, list[list[float]]] = {}
        self.hangs = False
        super().__init__(1, plan=plan)
        self.loop.run(START)

    def _script(self, random: Random, request: EngineRequest) -> GenerationScript:
        script = GenerationScript(random, pauses=False, aborts=False)
        courses = self.waits[request.question]
        script.pairs = False  # which answers have them depends on the order of arrival
        script.waits = courses.pop(0) if len(courses) > 1 else courses[0]
        if self.hangs:
            script.breaks, script.at_least = "stall", 1
            self.hangs = False
        return script

    def request(self, question: int, *courses: list[float], stream: bool = True, **options: Any) -> None:
        """`question`: an even number; odd ones have a small limit of tokens."""
        self.waits[question] = list(courses)
        self.ask("acme", question, self.routers[0], stream=stream, **options)

    def freeze(self, engine: int, seconds: float) -> None:
        process = self.engines[engine - 1].process
        self.loop.freeze(process)
        self.after(seconds, self.loop.thaw, process)

    def finish(self) -> None:
        while any(not record.ending for record in self.history.requests):
            self.loop.run(CLOCK.now + 1.0)

    def outcome(self) -> dict[Any, list[Any]]:
        """By question: how its request ended, its status, after how many seconds, and its number of generations."""
        requests = {}
        for record in self.history.requests:
            made = sum(generation.question == record.question for generation in self.history.generations)
            requests[record.question] = [record.ending, record.status, round(record.ended - record.started, 1), made]
        return requests


def parser_holds_arguments_back() -> SilenceWorld:
    world = SilenceWorld(engines=2)
    world.request(2, [1.0, 60.0, 0.01], fields=TOOLS)
    world.request(4, [35.0, 0.01], fields=TOOLS)
    return world


def long_prompt() -> SilenceWorld:
    world = SilenceWorld(engines=2)
    world.request(2, [90.0, 0.01])
    world.request(4, [90.0, 0.01], stream=False)
    return world


def hung_generation() -> SilenceWorld:
    world = SilenceWorld(engines=2)
    world.hangs = True
    world.request(2, [0.1, 0.1], [0.1, 0.1])
    return world


def slow_prompts_with_counters() -> SilenceWorld:
    world = SilenceWorld(engines=1)
    for number in range(1, 6):
        world.request(2 * number, [50.0])
    world.after(35.0, lambda: world.request(20, [0.1]))
    return world


def slow_prompts_without_counters() -> SilenceWorld:
    """Five time out, while another request gets a token each second; then another one comes."""
    world = SilenceWorld(engines=1)
    world.engines[0].has_counters = False
    world.request(12, [1.0] * 40)
    for number in range(1, 6):
        world.request(2 * number, [100.0])
    world.after(31.0, lambda: world.request(20, [0.1]))
    return world


def hung_engine_without_counters() -> SilenceWorld:
    """Five time out, and it does nothing for anybody; then another one comes, and finds an open breaker."""
    world = SilenceWorld(engines=1)
    world.engines[0].has_counters = False
    for number in range(1, 6):
        world.request(2 * number, [100.0])
    world.after(31.0, lambda: world.request(20, [0.1]))
    return world


def frozen_engine() -> SilenceWorld:
    """All requests are at the engine that freezes, since the other one was down when they came."""
    world = SilenceWorld(engines=2)
    world.freeze(2, 12.0)
    world.loop.run(CLOCK.now + 10.0)
    slow, fast = [1000.0], [0.1]
    world.request(2, slow, fast)
    world.request(4, slow, fast, stream=False, fields={"max_tokens": 50})
    world.request(6, slow, fast, stream=False)
    world.request(8, [0.1, 1000.0], [0.1, 0.1])
    world.loop.run(CLOCK.now + 10.0)
    world.freeze(1, 1000.0)
    world.loop.run(CLOCK.now + 10.0)
    world.request(20, fast)
    return world


def engine_pauses_with_a_stream_that_cannot_move() -> SilenceWorld:
    """The requests are at the engine that pauses, since the other one was down when they came."""
    world = SilenceWorld(engines=2)
    world.freeze(2, 12.0)
    world.loop.run(CLOCK.now + 10.0)
    has_token, none_yet, fast = [0.1, 16.0], [16.0, 0.1], [0.1, 0.1]
    must_call = {**TOOLS, "tool_choice": "required"}
    world.request(2, has_token, fast, fields=must_call)
    world.request(4, none_yet, fast, fields=must_call)
    world.request(6, has_token, fast)
    world.loop.run(CLOCK.now + 10.0)
    world.freeze(1, 12.0)
    return world


def engine_pauses_with_a_stream_whose_tokens_are_not_counted() -> SilenceWorld:
    """They are at the engine that pauses, since the other one was down when they came. Engines tell no ids."""
    world = SilenceWorld(engines=2)
    for engine in world.engines:
        engine.tells_ids = False
    world.freeze(2, 12.0)
    world.loop.run(CLOCK.now + 10.0)
    world.request(2, [0.1, 16.0], [0.1, 0.1], fields={"max_tokens": 50})
    world.request(4, [0.1, 16.0], [0.1, 0.1])
    world.loop.run(CLOCK.now + 10.0)
    world.freeze(1, 12.0)
    return world


def flapping_engine(engines: int) -> SilenceWorld:
    """Every other check of it fails, while it computes for streams that no other engine can continue."""
    world = SilenceWorld(engines)
    if engines > 1:  # the requests are at the one that flaps, since the other one was down when they came
        world.freeze(2, 12.0)
        world.loop.run(CLOCK.now + 10.0)
    for number in range(1, 6):
        world.request(2 * number, [0.1, 40.0, 0.1], fields=TOOLS)
    for number in range(10):
        world.after(2.5 + 6.0 * number, lambda: world.freeze(1, 3.0))
    world.after(35.0, lambda: world.request(20, [0.1]))
    return world


def flapping_engine_alone() -> SilenceWorld:
    return flapping_engine(1)


def flapping_engine_of_two() -> SilenceWorld:
    return flapping_engine(2)


def only_engine_pauses() -> SilenceWorld:
    world = SilenceWorld(engines=1)
    world.request(2, [10.0], stream=False)
    world.request(4, [10.0, 0.1])
    world.after(1.0, lambda: world.freeze(1, 12.0))
    return world


def batch_of_prompts() -> SilenceWorld:
    """It is never answered, so it ends with its total timeout."""
    world = SilenceWorld(engines=1)
    body = {"prompt": ["hi"] * 64, "max_tokens": 16, "messages": None}
    world.request(0, [10_000.0], stream=False, fields=body, path="/v1/completions")
    return world


SCENARIOS: Final[tuple[Callable[[], SilenceWorld], ...]] = (
    parser_holds_arguments_back, long_prompt, hung_generation, slow_prompts_with_counters,
    slow_prompts_without_counters, hung_engine_without_counters, frozen_engine,
    engine_pauses_with_a_stream_that_cannot_move, engine_pauses_with_a_stream_whose_tokens_are_not_counted,
    flapping_engine_alone, flapping_engine_of_two, only_engine_pauses, batch_of_prompts,
)  # fmt: skip


def write_outcomes(scenarios: Sequence[Callable[[], SilenceWorld]]) -> None:
    prepare()
    logging.disable(logging.CRITICAL)
    sys.unraisablehook = lambda _: None  # raised by garbage collection of the routers' tasks
    outcomes = {}
    for scenario in scenarios:
        world = scenario()
        world.finish()
        outcomes[scenario.__name__] = world.outcome()
        world.close()
    sys.stdout.write(json.dumps(outcomes) + "\n")


if __name__ == "__main__":
    write_outcomes(SCENARIOS)
