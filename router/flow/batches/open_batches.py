"""How many batches are open, and what happens to them, for the metrics of each process."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.core.batches.batch_overview import OpenState, open_state
from router.net.redis.pipeline import RedisDownError
from router.shared.batches.batch_records import BatchRecords

_INTERVAL: Final = 15.0  # seconds
_MAX_COUNTED: Final = 1000
"""Open batches that are counted, the oldest ones."""


class OpenBatches:
    def __init__(
        self, records: BatchRecords, tenants: Sequence[str], is_open: Callable[[], bool],
        set_open: Callable[[Mapping[OpenState, int] | None], None],
    ) -> None:  # fmt: skip
        """`is_open`: whether lines may run now. `set_open` gets the numbers, and None when they are unknown."""
        self._records = records
        self._tenants = frozenset(tenants)
        self._is_open = is_open
        self._set_open = set_open

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._set_open(await self._count())
                await asyncio.sleep(_INTERVAL)
        finally:
            self._set_open(None)

    async def _count(self) -> Mapping[OpenState, int] | None:
        try:
            # Nothing happens to those of tenants that are gone, which is no fault.
            names = [name for name in await self._records.open() if name.tenant in self._tenants]
            stages = await self._records.stages(names[:_MAX_COUNTED])
        except RedisDownError:
            return None
        states = [
            open_state(
                stage.status,
                paused=stage.is_paused,
                waiting=stage.is_waiting,
                limited=stage.is_limited,
                is_open=self._is_open(),
            )
            for stage in stages
        ]
        return Counter(state for state in states if state is not None)
