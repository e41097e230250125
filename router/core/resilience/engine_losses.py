"""How many engines one request may take down.

Theory. A request that kills its engine (a prompt that triggers a bug, an image that needs all memory) would kill the
next one too: by its next attempt, by the continuation of its stream, and by the retries of its client. So each engine
that dies with the request in hand counts, and after MAX_LOSSES the request gets an error. Requests that only were at
the same engine must not count:

- An engine that dies long after it got the request (a restart, another request) is no loss; see MAX_AGE.
- All requests that one engine had lose the same engine at the same time, and each goes on elsewhere. If several of them
  are equal, that is one loss, not one for each; see SAME_LOSS.
- A request that has been answered kills no engine: then its losses are forgotten.
"""

from typing import Final

import msgspec

MAX_LOSSES: Final = 2

WINDOW: Final = 60.0
"""Seconds for which a loss counts, also for later requests with the same bytes."""

MAX_AGE: Final = 30.0
"""Seconds from the request to the engine's end, up to which the request may be the cause."""

SAME_LOSS: Final = 2.0
"""Seconds within which two equal requests lose one engine once; none starts sooner."""

MAX_SUSPECTS: Final = 1024
"""Requests that are remembered; beyond, the oldest are forgotten."""

_SUSPICIOUS: Final = frozenset(("reset", "broken-off", "error-frame", "status-500"))
"""EngineError.reason with which an engine can die. vLLM's API server outlives its engine core, and answers 500 then."""


def may_be_a_loss(reason: str, seconds: float) -> bool:
    """Whether the engine is to be checked. `seconds`: from the request to its failure."""
    return reason in _SUSPICIOUS and seconds <= MAX_AGE


class Suspect(msgspec.Struct, frozen=True):
    """The engines that died with one request in hand, as (engine, when), the last one last."""

    losses: tuple[tuple[str, float], ...] = ()

    def after_loss(self, engine: str, now: float) -> "Suspect":
        recent = tuple(loss for loss in self.losses if now - loss[1] < WINDOW)
        if any(name == engine and now - at < SAME_LOSS for name, at in recent):
            return Suspect(recent)
        return Suspect((*recent, (engine, now))[-MAX_LOSSES:])

    def is_stopped(self, now: float) -> bool:
        return len([at for _, at in self.losses if now - at < WINDOW]) >= MAX_LOSSES


class Suspects(dict[int, Suspect]):
    """The suspects by the digest of their request, the one with the latest loss last; empty nearly always.

    `now`: seconds of a monotonic clock.
    """

    def record_loss(self, digest: int, engine: str, now: float) -> Suspect:
        suspect = self[digest] = self.pop(digest, Suspect()).after_loss(engine, now)
        while len(self) > MAX_SUSPECTS or now - self._oldest.losses[-1][1] >= WINDOW:
            del self[next(iter(self))]
        return suspect

    @property
    def _oldest(self) -> Suspect:
        return next(iter(self.values()))

    def is_stopped(self, digest: int, now: float) -> bool:
        suspect = self.get(digest)
        return suspect is not None and suspect.is_stopped(now)

    def forget(self, digest: int) -> None:
        self.pop(digest, None)
