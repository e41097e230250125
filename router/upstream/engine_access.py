"""Whether an engine lets the router in, from the statuses of its answers.

The key is right or wrong for all requests, so one 401 says enough. A 403 may be about one request: some APIs answer it
for a prompt that they do not like. So the next check asks for the list of models, with the router's key. A 403 for
that list says something only if the key was good for it before: some APIs never show it.
"""

from typing import Final

UNAUTHORIZED: Final = (401, 407)
FORBIDDEN: Final = 403
REFUSALS: Final = (*UNAUTHORIZED, FORBIDDEN)
"""Statuses of an engine that refuses the router's own credentials."""


class EngineAccess:
    """What an engine's answers say about the router's credentials.

    - `refused`: the status with which the engine refuses them; None while it lets the router in, as far as is known.
    - `doubted`: a request got 403, so the next check asks.
    """

    __slots__ = ("_has_listed", "doubted", "refused")

    def __init__(self) -> None:
        self.refused: int | None = None
        self.doubted = False
        self._has_listed = False  # to the router's key, since it came up

    def on_request(self, status: int) -> None:
        """The engine answered a client's request with one of REFUSALS."""
        if status == FORBIDDEN:
            self.doubted = True
        else:
            self.refused = status

    def on_health(self, status: int) -> None:
        """The engine answered a check of its health."""
        if status in REFUSALS:
            self.refused = status

    def on_models(self, status: int, *, has_key: bool = False) -> None:
        """The engine answered a request for its list of models, for which vLLM needs the key, unlike for its health."""
        if status == 200:
            self._has_listed = has_key
        is_meant = self.doubted or self._has_listed or self.refused is not None
        if status in UNAUTHORIZED or (status == FORBIDDEN and is_meant):
            self.refused = status
        elif status < 500:  # one that has no such list does not refuse the key with it, either
            self.refused, self.doubted = None, False

    def reset(self) -> None:
        """The engine cannot be reached; what comes up may be another server."""
        self.refused, self.doubted, self._has_listed = None, False, False
