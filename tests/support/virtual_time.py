"""A test on an event loop with a virtual clock, without the processes of tests/world.

@on_virtual_time
async def test_a_lease_expires() -> None:
    await asyncio.sleep(3600)  # returns at once

Time passes only while all tasks wait. So a pause of the machine decides nothing, and a timeout costs no time.
"""

import functools
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final, ParamSpec

from tests.simulation.clock import CLOCK, virtual_time
from tests.simulation.loop import new_loop
from tests.simulation.network import SimulatedNetwork

P = ParamSpec("P")

_LIMIT: Final = 24 * 3600.0  # seconds of virtual time after which a test has failed
_STEP: Final = 0.1  # seconds of virtual time between two checks whether it has ended


def on_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Makes a test of a coroutine."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_on_virtual_time(test(*args, **kwargs))

    return run


def run_on_virtual_time(coroutine: Coroutine[Any, Any, None], seed: int = 0) -> None:
    """`seed` decides the order of what is due at the same instant. What fails in a callback fails the test."""
    with virtual_time(seed):
        loop = new_loop(Random(seed))
        loop.network = SimulatedNetwork(loop, Random(seed))
        task = loop.spawn(loop.world, coroutine)
        while not task.done() and CLOCK.now < _LIMIT:
            loop.run(CLOCK.now + _STEP)
        is_done = task.done()
        for each in loop.world.tasks:
            each.cancel()
        loop.run(CLOCK.now + _STEP)
        defects = list(loop.defects)
        loop.close()
    if not is_done:
        raise TimeoutError(f"{coroutine!r} has not ended within {_LIMIT:g} s of virtual time")
    task.result()
    assert not defects, "\n".join(defects)
