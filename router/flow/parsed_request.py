"""What a request asks for, once it has been understood."""

from collections.abc import Callable

import msgspec

from router.core.cache.cache_control import CacheControl
from router.core.cache.key import CacheKey, RequestParts
from router.core.endpoints.request import InferenceRequest
from router.core.types import Task
from router.upstream.catalog import Model


class ParsedRequest(msgspec.Struct):
    """A request that was understood; see the types of its parts.

    `task` is worked out when it is asked for first: a request that is answered from the cache needs none.
    """

    request: InferenceRequest
    parts: RequestParts
    model: Model
    key: CacheKey
    control: CacheControl
    _classify: Callable[[str], Task]
    _task: Task | None

    @property
    def task(self) -> Task:
        if self._task is None:
            self._task = self._classify(self.parts.question)
        return self._task
