"""What the queries of the panels return, asked for as Grafana asks."""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tests.dashboards.grafana_variables import interpolate
from tests.support.prometheus_process import PrometheusServer
from tools.dashboards.description import Dashboard, Panel, Query

STEP: Final = 1.0
SCRAPE_INTERVAL: Final = 1.0
"""What the data source states, in seconds. Prometheus scrapes more often here, so that the load can be short."""

ALL: Final = ".*"
"""The value of a variable with "All" selected."""


class Figure(NamedTuple):
    """`values`: the last value of each series by its legend, without series that are NaN only."""

    dashboard: Dashboard
    panel: Panel
    query: Query
    values: Mapping[str, float]

    @property
    def name(self) -> str:
        return f"{self.dashboard.title} / {self.panel.title} / {self.query.legend}"


async def panel_figures(
    prometheus: PrometheusServer,
    dashboards: Iterable[Dashboard],
    since: float,
    selected: Mapping[str, str | Sequence[str]] | None = None,
) -> list[Figure]:
    """`since`: the start of the time range, of time.time. `selected`: by variable; the others have "All"."""
    figures = []
    for dashboard in dashboards:
        values = {**dict.fromkeys(dashboard.variables, ALL), **(selected or {})}
        for panel in dashboard.panels:
            for query in panel.queries:
                series = await _series(prometheus, panel, query, since, values)
                figures.append(Figure(dashboard, panel, query, series))
    return figures


async def _series(
    prometheus: PrometheusServer, panel: Panel, query: Query, since: float, values: Mapping[str, str | Sequence[str]]
) -> dict[str, float]:
    now = time.time()
    expr = interpolate(query.expr, step=STEP, scrape_interval=SCRAPE_INTERVAL, range_=now - since, values=values)
    if panel.kind == "stat":
        found = [(labels, [value]) for labels, value in await prometheus.query(expr)]
    else:
        found = await prometheus.query_range(expr, since, now, STEP)
    known = [(labels, [value for value in series if not math.isnan(value)]) for labels, series in found]
    return {legend(query.legend, labels): series[-1] for labels, series in known if series}


def legend(template: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), template)
