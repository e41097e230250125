"""What a request asks for, once it has been understood."""

from collections.abc import Callable

import msgspec

from router.core.cache.cache_control import Control
from router.core.cache.key import Key, Parts
from router.core.endpoints.request import Request
from router.core.types import Task
from router.upstream.catalog import Model


class Reading(msgspec.Struct):
    """A request that was understood; see the types of its parts.

    `task` is worked out when it is asked for first: a request that is answered from the cache needs none.
    """

    request: Request
    parts: Parts
    model: Model
    key: Key
    control: Control
    _classify: Callable[[str], Task]
    _task: Task | None

    @property
    def task(self) -> Task:
        if self._task is None:
            self._task = self._classify(self.parts.question)
        return self._task
