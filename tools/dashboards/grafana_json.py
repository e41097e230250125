"""Turns the description of a dashboard into Grafana's JSON, with the types of Grafana's own SDK."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard, prometheus

from tools.dashboards.description import Dashboard, Panel, Query
from tools.dashboards.panel_builders import new_panel

SCHEMA_VERSION: Final = 41
"""Of the JSON; newer versions of Grafana migrate it when they load it."""

DATASOURCE_VARIABLE: Final = "datasource"
TAG: Final = "roundhouse"
GRID_COLUMNS: Final = 24

_DATASOURCE: Final = common.DataSourceRef("prometheus", f"${{{DATASOURCE_VARIABLE}}}")
_VARIABLE_SOURCES: Final = {
    "instance": "roundhouse_redis_up",
    "model": "roundhouse_engine_info",
    "tenant": "llm_requests_total",
    "engine": 'roundhouse_engine_info{model=~"$model"}',
}
"""The series whose label values a variable offers."""


def dashboard_json(described: Dashboard) -> str:
    builder = (
        build.Dashboard(described.title)
        .uid(described.uid)
        .description(described.description)
        .tags([TAG])
        .editable()
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .links([_links_to_the_others()])
        .variables([_datasource_variable(), *map(_label_variable, described.variables)])
    )
    built = builder.build()
    built.schema_version = SCHEMA_VERSION
    assert built.templating is not None
    for variable in built.templating.list_val or ():
        # The SDK writes the fields of interval variables for all kinds.
        variable.auto = variable.auto_min = variable.auto_count = None
    built.panels = _place(described)
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(built) + "\n"


def _place(described: Dashboard) -> list[dashboard.Panel | dashboard.RowPanel]:
    """Numbers the panels, and puts them on the grid: a row of panels is full at 24 columns."""
    placed: list[dashboard.Panel | dashboard.RowPanel] = []
    y = 0
    for row in described.rows:
        placed.append(_row(row.title, len(placed) + 1, y))
        y += 1
        x = height = 0
        for panel in row.panels:
            if x + panel.width > GRID_COLUMNS:
                x, y, height = 0, y + height, 0
            position = dashboard.GridPos(x=x, y=y, w=panel.width, h=panel.height)
            placed.append(_panel(panel, len(placed) + 1, position))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return placed


def _row(title: str, number: int, y: int) -> dashboard.RowPanel:
    row = build.Row(title).id(number).build()
    row.grid_pos = dashboard.GridPos(x=0, y=y, w=GRID_COLUMNS, h=1)
    return row


def _panel(panel: Panel, number: int, position: dashboard.GridPos) -> dashboard.Panel:
    built = new_panel(panel, [_target(panel, query, place) for place, query in enumerate(panel.queries)]).build()
    built.id_val = number
    built.datasource = _DATASOURCE
    built.grid_pos = position
    return built


def _target(panel: Panel, query: Query, place: int) -> Dataquery:
    target = Dataquery().ref_id(chr(ord("A") + place)).datasource(_DATASOURCE).expr(query.expr)
    target = target.legend_format(query.legend).editor_mode(prometheus.QueryEditorMode.CODE)
    if panel.kind == "heatmap":
        target = target.format(prometheus.PromQueryFormat.HEATMAP)
    if query.exemplars:
        target = target.exemplar(True)
    return target.instant() if panel.kind == "stat" else target.range()


def _links_to_the_others() -> build.DashboardLink:
    """One link for each dashboard with the tag; the filters and the time range stay."""
    return (
        build.DashboardLink("Roundhouse")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
    )


def _datasource_variable() -> build.DatasourceVariable:
    return build.DatasourceVariable(DATASOURCE_VARIABLE).label("Data source").type("prometheus")


def _label_variable(label: str) -> build.QueryVariable:
    return (
        build.QueryVariable(label)
        .label(label.capitalize())
        .datasource(_DATASOURCE)
        .query(f"label_values({_VARIABLE_SOURCES[label]}, {label})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(selected=True, text=["All"], value=["$__all"]))
    )
