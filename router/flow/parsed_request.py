"""A request after parsing: its model, its cache key, its task."""

from collections.abc import Callable

import msgspec

from router.core.cache.cache_control import CacheControl
from router.core.cache.key import CacheKey, RequestParts
from router.core.endpoints.request import InferenceRequest
from router.core.types import Task
from router.upstream.catalog import Model


class ParsedRequest(msgspec.Struct):
    """`task` is classified at its first use, because a cache hit does not need it."""

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
