"""Repeats the steps of a watch, whatever one of them raises."""

from collections.abc import Awaitable, Callable

from engines.watchdog.record import Record


async def repeat(
    step: Callable[[], Awaitable[None]], *, engine: str, record: Record, interval: float,
    sleep: Callable[[float], Awaitable[None]],
) -> None:  # fmt: skip
    """Runs until it is cancelled, with `interval` seconds between two steps. A failure is recorded once in a row."""
    failure: str | None = None
    while True:
        try:
            await step()
            failure = None
        except Exception as error:  # noqa: BLE001 - the last line of defence, see below
            # The last line of defence: an unexpected failure at one engine must not end the watch of all.
            if repr(error) != failure:
                failure = repr(error)
                await record.write(engine, "failed", failure)
        await sleep(interval)
