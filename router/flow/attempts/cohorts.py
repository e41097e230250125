"""The cohorts of a model's engines by their present state; see router.core.routing.traffic_share."""

from collections.abc import Mapping, Sequence

from router.core.routing.traffic_share import REST, choose_cohort, with_others
from router.upstream.engine import Engine


def pick_cohort(engines: Sequence[Engine], shares: Mapping[str, int], point: float) -> tuple[str, str | None]:
    """The cohort that a request with this point is for, and its engines' own revision."""
    available = {_cohort(engine) for engine in engines if _is_available(engine)}
    cohort = choose_cohort(shares, point, available)
    return cohort, next((engine.revision for engine in engines if _cohort(engine) == cohort), None)


def split_by_cohort(engines: Sequence[Engine], shares: Mapping[str, int], cohort: str) -> Sequence[Sequence[Engine]]:
    """The engines, those of the cohort first, then those that take over from it.

    A standby (with a share of 0) is left out while another engine is available, unless the request is for it.
    """
    names = with_others(shares, cohort)
    if any(_is_available(engine) for engine in engines if engine.share != 0):
        names = [name for name in names if name == cohort or shares.get(name) != 0]
    parts = [[engine for engine in engines if _cohort(engine) == name] for name in names]
    return [part for part in parts if part]


def _cohort(engine: Engine) -> str:
    return REST if engine.share is None else engine.family


def _is_available(engine: Engine) -> bool:
    return engine.up is not False and not engine.drained
