"""Waits for the end of a batch, and fetches its results, also from a router that does not answer for a while."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from router.commands.batch.batch_view import Batch
from router.commands.batch.progress_display import Display
from router.commands.console import STDIO, open_output
from router.core.batches.progress_rate import ProgressRate

if TYPE_CHECKING:  # it would slow all other commands down
    from router.commands.batch.api_client import ApiClient

_MIN_INTERVAL: Final = 0.2
_MAX_INTERVAL: Final = 5.0
"""Seconds between two looks: each counts as a request of the tenant."""

_SHARE_OF_TIME: Final = 0.05
"""Of the time waited so far until the next look, so that a short batch is seen to end at once."""

_RETRY_INTERVAL: Final = 1.0

ResultT = TypeVar("ResultT")


class Waiting(NamedTuple):
    """`clock`: in seconds, does not go backwards."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def follow(
    client: "ApiClient", id_: str, display: Display, on_look: Callable[[Batch], None], waiting: Waiting
) -> Batch:
    """The batch when it has ended. Raises ApiClientError where waiting does not help. `on_look` gets each state."""
    started = waiting.clock()
    rate = ProgressRate()
    while True:
        batch = persistently(lambda: client.find(id_), display, waiting)
        on_look(batch)
        rate.look(waiting.clock(), batch.view.status, batch.view.counts.done, paused=batch.view.paused)
        display.show(batch.view, rate)
        if batch.view.has_ended:
            return batch
        waited = waiting.clock() - started
        waiting.sleep(min(_MAX_INTERVAL, max(_MIN_INTERVAL, _SHARE_OF_TIME * waited)))


def fetch(client: "ApiClient", id_: str | None, path: Path, display: Display, waiting: Waiting) -> None:
    """Writes a file of the router to a path; an empty one if it has none. Raises ApiClientError and OSError."""

    def fetch_once() -> None:
        # Opened for each try: what a broken connection left is cut off.
        with open_output(path) as stream:
            if id_ is not None:
                client.fetch(id_, stream.write, display.bytes_of(f"fetching {path}"))

    # What was written to standard output cannot be written again.
    fetch_once() if path == STDIO else persistently(fetch_once, display, waiting)


def persistently(ask: Callable[[], ResultT], display: Display, waiting: Waiting) -> ResultT:
    """Asks until the router answers. Raises ApiClientError where that does not help."""
    from router.commands.batch.api_client import PassingError

    said = ""
    while True:
        try:
            result = ask()
        except PassingError as error:
            # Once for each cause, not for each try: a restart takes many.
            if str(error) != said:
                said = str(error)
                display.say(f"{said}; waiting for it")
            waiting.sleep(max(_RETRY_INTERVAL, error.retry_after))
        else:
            if said:
                display.say("it answers again")
            return result
