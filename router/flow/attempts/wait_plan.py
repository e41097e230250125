"""How a request waits if all engines of its model are down; see router.flow.attempts.waking."""

from collections.abc import Callable, Sequence

import msgspec

from router.upstream.engine import Engine


class WaitPlan(msgspec.Struct, kw_only=True, eq=False):
    """Times are in seconds; `deadline` is an instant of a monotonic clock, None before the wait has begun.

    - `fallbacks`: the models that may answer in place of `model`.
    - `wakes_first`: while the model's engines give way to others at a GPU, it waits although a fallback could answer.
    - `is_preferred`: the client has said how long it is willing to wait, so it prefers that to a fallback.
      `is_shortened`: that is less long than the model's `wake`.
    - `order_engines`: the engines for the request as far as they are known now, the best first. Raises ApiError.
    """

    model: str
    fallbacks: tuple[str, ...]
    max_wait: float
    wakes_first: bool
    is_preferred: bool
    is_shortened: bool
    order_engines: Callable[[], Sequence[Engine]]
    deadline: float | None = None

    @property
    def prefers_waiting(self) -> bool:
        """To an answer of a fallback."""
        return self.is_preferred and self.max_wait > 0

    def deadline_passed(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline
