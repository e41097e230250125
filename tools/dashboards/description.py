"""What a dashboard is made of, independent of Grafana's JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

TOKENS_PER_SECOND: Final = "suffix: tok/s"
"""Grafana has no such unit; `suffix:` defines one."""

PanelKind = Literal["timeseries", "stat", "state timeline", "heatmap"]


@dataclass(frozen=True)
class Query:
    """`legend`: with `{{label}}` for the value of a label. `exemplars`: show the traces of single requests as dots."""

    expr: str
    legend: str
    exemplars: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel.

    - `unit`: one of Grafana's, see grafana_foundation_sdk.models.units. `width`: in columns, of 24.
    - `colours`: by regular expression of the legend; `thresholds`: a colour from each value on.
    - `texts`: by value, a text and its colour.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: PanelKind = "timeseries"
    width: int = 8
    height: int = 8
    stacked: bool = False
    minimum: float | None = 0
    maximum: float | None = None
    colours: Mapping[str, str] = field(default_factory=dict)
    thresholds: tuple[tuple[float, str], ...] = ()
    texts: Mapping[int, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Dashboard:
    """`variables`: the labels by which a viewer can filter."""

    uid: str
    title: str
    description: str
    variables: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]
