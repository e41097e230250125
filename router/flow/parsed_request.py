"""A request after parsing: its model, its cache key, its task."""

from collections.abc import Callable

from router.core.cache.cache_control import CacheControl
from router.core.cache.cache_key import CacheKey
from router.core.cache.fingerprint import Fingerprint
from router.core.cache.key import RequestParts
from router.core.cache.miss_reason import PartHashes, fingerprint_request, hash_parts
from router.core.cache.sample import ONLY_SAMPLE, Sample
from router.core.endpoints.endpoint import InferenceRequest
from router.core.routing.classify import task_for
from router.core.types import Task
from router.upstream.catalog import Model


class ParsedRequest:
    """`log_odds`, `task`, `fingerprint` and `part_hashes` are computed at their first use: a cache hit needs none of
    them.

    - `cohort`: the engines that it is for, see core.routing.traffic_share; None where the model's engines have no
      shares.
    - `engine_revision`: the own revision of these engines, which the key stands for; None for the model's.
    - `sample`: which sample the key stands for.
    """

    __slots__ = (
        "_fingerprint",
        "_log_odds",
        "_log_odds_of",
        "_part_hashes",
        "cohort",
        "control",
        "engine_revision",
        "key",
        "model",
        "parts",
        "request",
        "sample",
    )

    def __init__(
        self, request: InferenceRequest, parts: RequestParts, model: Model, key: CacheKey, control: CacheControl,
        log_odds_of: Callable[[str], float], log_odds: float | None,
    ) -> None:  # fmt: skip
        """`log_odds_of` scores a question; `log_odds`: None if that was not needed yet."""
        self.request = request
        self.parts = parts
        self.model = model
        self.key = key
        self.control = control
        self.cohort: str | None = None
        self.engine_revision: str | None = None
        self.sample = ONLY_SAMPLE
        self._log_odds_of = log_odds_of
        self._log_odds = log_odds
        self._fingerprint: Fingerprint | None = None
        self._part_hashes: PartHashes | None = None

    def use_sample(self, sample: Sample) -> None:
        self.sample = sample
        self.key = self.key.sample(sample.number)
        self._fingerprint = self._part_hashes = None

    @property
    def log_odds(self) -> float:
        if self._log_odds is None:
            self._log_odds = self._log_odds_of(self.parts.question)
        return self._log_odds

    @property
    def task(self) -> Task:
        return task_for(self.log_odds)

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
