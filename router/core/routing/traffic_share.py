"""Which engines of a model a request is for, where engines have a share of the model's requests (a canary).

Theory. The engines of a model form cohorts: each [[engine]] with a `share` is one, with its replicas, and the engines
without a share are the rest, which takes what the shares leave of 100. A request has a point from 0 up to 100, a hash
of its session or else of its cache key. The shares lie side by side from 0 on, in the order of the engines' names, so
the point falls into one cohort, or beyond all of them into the rest. So all routers agree without communication, the
same request goes to the same cohort each time, and a share that grows keeps the sessions that it has if it is the only
one.

A cohort in which no engine is available is replaced: by the rest, or else by the largest share. A share of 0 is a
standby, which gets requests only while all others are unavailable.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import xxhash

REST: Final = ""
"""The cohort of the engines without a share; no engine has this name."""

WHOLE: Final = 100
"""All requests of a model."""


def request_point(model: str, tenant: str, session: str | None, key: str) -> float:
    """A number from 0 up to WHOLE: the same for all requests of a session to a model, else for all with one key."""
    text = f"session:{model}:{tenant}:{session}" if session is not None else f"request:{key}"
    return xxhash.xxh3_64_intdigest(text.encode()) / 2**64 * WHOLE


def order_cohorts(shares: Mapping[str, int], point: float) -> Sequence[str]:
    """The cohorts in the order in which they are to be tried. `shares`: by cohort, without the rest."""
    chosen, end = REST, 0
    for name in sorted(shares):
        end += shares[name]
        if point < end:
            chosen = name
            break
    return with_others(shares, chosen)


def with_others(shares: Mapping[str, int], cohort: str) -> Sequence[str]:
    """A cohort, and those that take over from it in their order."""
    others = [REST, *sorted(shares, key=lambda name: (-shares[name], name))]
    return [cohort, *(name for name in others if name != cohort)]


def choose_cohort(shares: Mapping[str, int], point: float, available: Collection[str]) -> str:
    """The first cohort of the order that is available; the first of all if none is."""
    order = order_cohorts(shares, point)
    return next((name for name in order if name in available), order[0])
