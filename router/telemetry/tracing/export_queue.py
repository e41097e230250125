"""The queue between the event loop and the thread that makes and exports spans."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

log = logging.getLogger("roundhouse.tracing")

MAX_QUEUE: Final = 8192
"""Items that may wait. Each is one request, generation or write to the cache."""

MAX_BATCH: Final = 256
"""Items of one export. More would hold Python's lock for longer without a break."""

EXPORT_INTERVAL: Final = 1.0  # seconds
CLOSE_TIMEOUT: Final = 5.0
"""Seconds within which `close` returns, whatever the collector does."""


class ExportQueue:
    """Exports items in a thread of its own.

    - `put` never waits and never fails. With MAX_QUEUE items waiting, or after `close`, an item is dropped.
    - Dropped items, and those of failed exports, are counted: `on_dropped` gets the reason and the number.
    - When exports begin to fail, and when they succeed again, that is logged once; so is the first full queue.
    - `close` exports what is waiting, within CLOSE_TIMEOUT.
    """

    def __init__(
        self,
        export: Callable[[Sequence[object]], bool],
        abort: Callable[[], None],
        *,
        on_dropped: Callable[[str, int], None],
        collector: str,
        interval: float = EXPORT_INTERVAL,
    ) -> None:
        """`export` returns False if the collector did not accept the items; it may block. `abort` ends its waiting.

        `on_dropped` is called in both threads. `collector`: its address for the log. `interval` in seconds.
        """
        self._export = export
        self._abort = abort
        self._on_dropped = on_dropped
        self._collector = collector
        self._interval = interval
        self._items: deque[object] = deque()
        self._closing = threading.Event()
        self._abandoned = False
        self._failing = False
        self._was_full = False
        self._thread = threading.Thread(target=self._run, name="roundhouse-tracing", daemon=True)
        self._thread.start()

    def put(self, item: object) -> None:
        if len(self._items) < MAX_QUEUE and not self._closing.is_set():
            self._items.append(item)
        else:
            self._on_dropped("queue_full", 1)
            if not self._was_full and not self._closing.is_set():
                self._was_full = True
                log.warning("traces: %d items wait for their export; further ones are dropped", MAX_QUEUE)

    def close(self) -> None:
        self._closing.set()
        self._thread.join(CLOSE_TIMEOUT * 0.8)
        self._abandoned = True
        self._abort()  # after this, an export that waits for the collector fails
        self._thread.join(CLOSE_TIMEOUT * 0.2)

    def _run(self) -> None:
        while not self._closing.wait(self._interval):
            self._export_waiting()
        self._export_waiting()

    def _export_waiting(self) -> None:
        while self._items:
            batch = [self._items.popleft() for _ in range(min(MAX_BATCH, len(self._items)))]
            if self._abandoned or not self._try_export(batch):
                self._on_dropped("export_failed", len(batch))
            time.sleep(0)  # lets the event loop run between two batches

    def _try_export(self, batch: Sequence[object]) -> bool:
        try:
            exported = self._export(batch)
        except Exception:
            # The last line of defence: without it, an error in one batch would end the export of all others.
            if not self._failing:
                log.exception("traces: a batch cannot be exported")
            exported = False
        if exported == self._failing:
            self._failing = not exported
            if exported:
                log.info("traces: the collector at %s accepts them again", self._collector)
            else:
                log.warning("traces: the collector at %s does not accept them; they are dropped", self._collector)
        return exported
