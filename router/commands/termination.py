"""Ends a command on a signal so that it tidies up: its `finally` blocks run."""

import sys


class Termination:
    """Exits on a signal.

    Python ignores an exception that is raised in a callback of the garbage collector or of an import, and a signal can
    arrive in one. So `check` exits for a signal that was lost like this.
    """

    def __init__(self) -> None:
        self._code: int | None = None

    def on_signal(self, number: int, _: object) -> None:
        self._code = 128 + number
        sys.exit(self._code)

    def check(self) -> None:
        if self._code is not None:
            sys.exit(self._code)
