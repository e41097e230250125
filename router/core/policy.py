"""May this request be looked up, and may its answer be stored?"""

from typing import Literal, NamedTuple

from router.core.control import Control
from router.core.request import Request
from router.core.types import Bypass

Store = Literal["all", "deterministic"]


class Decision(NamedTuple):
    """`bypass`: why the request is not looked up, or None where it is. `keep`: whether its answer may be stored."""

    bypass: Bypass | None
    keep: bool


def decide(request: Request, control: Control, store: Store) -> Decision:
    """What the configuration and the client allow.

    `deterministic` leaves out what may be answered otherwise the next time: anything without temperature 0 or a seed.
    """
    if control.no_store:
        return Decision(Bypass.NO_STORE, keep=False)
    if store == "deterministic" and not request.deterministic:
        return Decision(Bypass.POLICY, keep=False)
    return Decision(Bypass.NO_CACHE if control.no_cache else None, keep=control.ttl != 0)
