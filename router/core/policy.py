"""May this request be looked up and its answer be stored?"""

from typing import Literal

from router.core.request import Request
from router.core.types import Bypass

Store = Literal["all", "deterministic"]


def bypass(request: Request, store: Store) -> Bypass | None:
    """Why the cache has no part in this request, or None where it has.

    `deterministic` leaves out what may be answered otherwise the next time: anything without temperature 0 or a seed.
    """
    if store == "deterministic" and not request.deterministic:
        return Bypass.POLICY
    return None
