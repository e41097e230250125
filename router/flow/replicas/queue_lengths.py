"""How many requests of this process wait in the queues of a model.

After a reload, requests of the earlier configuration may wait for minutes, in queues of their own. Autoscalers start
engines by the sum, so that must not restart at 0.
"""

from collections.abc import Callable

SetQueueLength = Callable[[str, int], None]
"""Gets a model's name and the number of queued requests."""


class QueueLengths:
    """Adds up what several queues report."""

    def __init__(self, set_total: SetQueueLength) -> None:
        self._set_total = set_total
        self._totals: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Of all models."""
        return sum(self._totals.values())

    def reporter(self) -> SetQueueLength:
        """For the queues of one configuration: reports their lengths, each time that one changes."""
        own: dict[str, int] = {}

        def report(model: str, waiting: int) -> None:
            self._totals[model] = self._totals.get(model, 0) + waiting - own.get(model, 0)
            own[model] = waiting
            self._set_total(model, self._totals[model])

        return report
