"""Replaces the variables of a query as Grafana does, source: its documentation of Prometheus template variables."""

import re
from collections.abc import Mapping, Sequence

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")


def rate_interval(step: float, scrape_interval: float) -> float:
    """$__rate_interval in seconds: at least four scrapes, so that a rate has samples in spite of a failed one."""
    return max(step + scrape_interval, 4 * scrape_interval)


def interpolate(
    expr: str, *, step: float, scrape_interval: float, range_: float, values: Mapping[str, str | Sequence[str]]
) -> str:
    """`values`: of the dashboard's variables; several values become a regular expression. Times are in seconds.

    Raises KeyError for a variable that the dashboard does not have.
    """
    built_in = {
        "__interval": f"{step:g}s",
        "__rate_interval": f"{rate_interval(step, scrape_interval):g}s",
        "__range": f"{round(range_)}s",
    }

    def replace(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in built_in:
            return built_in[name]
        value = values[name]
        return value if isinstance(value, str) else f"({'|'.join(map(_escape, value))})"

    return _VARIABLE.sub(replace, expr)


def _escape(value: str) -> str:
    """A regular expression for a value, in a string of PromQL."""
    return re.sub(r"[\\^$*+?.()|[\]{}]", lambda found: "\\\\" + found[0], value)
