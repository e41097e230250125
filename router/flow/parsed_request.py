"""A request after parsing: its model, its cache key, its task."""

from collections.abc import Callable

import msgspec

from router.core.cache.cache_control import CacheControl
from router.core.cache.fingerprint import Fingerprint
from router.core.cache.key import CacheKey, RequestParts
from router.core.cache.miss_reason import PartHashes, fingerprint_request, hash_parts
from router.core.endpoints.endpoint import InferenceRequest
from router.core.types import Task
from router.upstream.catalog import Model


class ParsedRequest(msgspec.Struct):
    """`task`, `fingerprint` and `part_hashes` are computed at their first use: a cache hit needs none of them."""

    request: InferenceRequest
    parts: RequestParts
    model: Model
    key: CacheKey
    control: CacheControl
    _classify: Callable[[str], Task]
    _task: Task | None
    _fingerprint: Fingerprint | None = None
    _part_hashes: PartHashes | None = None

    @property
    def task(self) -> Task:
        if self._task is None:
            self._task = self._classify(self.parts.question)
        return self._task

    @property
    def fingerprint(self) -> Fingerprint:
        if self._fingerprint is None:
            self._fingerprint = fingerprint_request(self.key, self.parts)
        return self._fingerprint

    @property
    def part_hashes(self) -> PartHashes:
        if self._part_hashes is None:
            self._part_hashes = hash_parts(self.fingerprint)
        return self._part_hashes
