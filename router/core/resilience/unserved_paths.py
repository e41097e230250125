"""The endpoints that an engine does not have, as its 404s tell."""

from typing import Final

MEMORY: Final = 60.0
"""Seconds for which other engines are preferred. It may be another server by then, without having been seen down."""


class UnservedPaths:
    """The paths to which an engine has answered that it has no such route.

    - A path counts for MEMORY after the last such answer, or until `discard` or `clear`.
    - Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # by path; those of the router's endpoints, so there are few

    def add(self, path: str, now: float) -> bool:
        """Returns whether it is the first such answer since the last `clear`."""
        is_first = path not in self._until
        self._until[path] = now + MEMORY
        return is_first

    def has(self, path: str, now: float) -> bool:
        return self._until.get(path, now) > now

    def __bool__(self) -> bool:
        """False if there are none, which is the common case."""
        return bool(self._until)

    def discard(self, path: str) -> None:
        """The engine has answered at this path."""
        self._until.pop(path, None)

    def clear(self) -> None:
        self._until.clear()
