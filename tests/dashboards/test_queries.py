"""The queries and rules name only metrics and labels that exist."""

import re
from collections.abc import Iterator

import pytest

from router.telemetry.metric_table import METRICS
from tests.dashboards.grafana_variables import interpolate, rate_interval
from tests.support.offenders import assert_none
from tools.dashboards.alerts import ALERTS
from tools.dashboards.generated_files import DASHBOARDS
from tools.dashboards.metrics import IN_NO_DASHBOARD, LABELS
from tools.dashboards.promql import RECORDED
from tools.dashboards.recording_rules import DERIVED, RATES

ADDED = {"instance", "job"}  # by Prometheus
SELECTOR = re.compile(r"\b([a-z_]+(?::\w+)*)\{([^}]*)\}|\b((?:llm|vllm|roundhouse)_\w+|\w+:\w+:\w+|up)\b")
GROUPING = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")


def known() -> dict[str, set[str]]:
    recorded = {name: set(rule.labels) for name, rule in RECORDED.items()}
    return {name: {*labels, *ADDED} for name, labels in LABELS.items()} | recorded | {"up": ADDED}


def queries() -> Iterator[tuple[str, str]]:
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.uid}: {panel.title}", query.expr
    for rule in (*RATES, *DERIVED):
        yield rule.record, rule.expr
    for alert in ALERTS:
        yield alert.name, alert.expr


def selectors(expr: str) -> list[tuple[str, set[str]]]:
    """The metrics of a query, with the labels that its matchers name."""
    return [
        (named or bare, set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers)))
        for named, matchers, bare in SELECTOR.findall(expr)
    ]


def problems(expr: str, metrics: dict[str, set[str]]) -> Iterator[str]:
    """The names in a query that do not exist."""
    used = selectors(expr)
    if not used:
        yield "no metric"
    for metric, labels in used:
        if metric not in metrics:
            yield f"no metric {metric}"
        else:
            yield from (f"{metric} has no {label}" for label in sorted(labels - metrics[metric]))
    grouped = {label for labels in GROUPING.findall(expr) for label in re.findall(r"\w+", labels)}
    kept = set().union(*(metrics.get(metric, set()) for metric, _ in used))
    yield from (f"no metric has {label}" for label in sorted(grouped - kept))


def test_a_query_has_only_known_metrics_with_their_labels() -> None:
    metrics = known()
    assert_none(f"{name}: {problem}: {expr}" for name, expr in queries() for problem in problems(expr, metrics))


@pytest.mark.parametrize(
    ("expr", "problem"),
    [
        ("1", "no metric"),
        ("sum(llm_request_total)", "no metric llm_request_total"),
        ('llm_tokens_total{engine="x"}', "llm_tokens_total has no engine"),
        ("sum by (engine) (llm_tokens_total)", "no metric has engine"),
    ],
)
def test_an_unknown_metric_and_an_unknown_label_are_found(expr: str, problem: str) -> None:
    assert list(problems(expr, known())) == [problem]


def test_a_legend_names_only_labels_that_the_query_keeps() -> None:
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for query in panel.queries:
                kept = set().union(*(re.findall(r"\w+", labels) for labels in GROUPING.findall(query.expr)))
                if not kept:  # no aggregation: all labels of the metric
                    kept = set().union(*(known()[metric] for metric, _ in selectors(query.expr)))
                assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= kept, f"{panel.title}: {query.legend}"


def test_every_metric_is_in_a_dashboard_or_has_a_reason() -> None:
    used = {metric for _, expr in queries() for metric, _ in selectors(expr)}
    assert used & LABELS.keys() == LABELS.keys()
    assert METRICS.keys() >= IN_NO_DASHBOARD.keys()


def test_every_recorded_series_is_used() -> None:
    everything = [expr for _, expr in queries()]
    assert [rule.record for rule in (*RATES, *DERIVED) if not any(rule.record in expr for expr in everything)] == []


def test_variables_are_replaced_as_grafana_does() -> None:
    def filled(expr: str, **values: str | list[str]) -> str:
        return interpolate(expr, step=60, scrape_interval=15, range_=3600, values=values)

    assert filled("rate(x[$__rate_interval]) + y[$__range] + z[$__interval]") == "rate(x[75s]) + y[3600s] + z[60s]"
    assert filled('x{model=~"$model"}', model=".*") == 'x{model=~".*"}'
    assert filled('x{model=~"$model"}', model=["a.b", "c"]) == r'x{model=~"(a\\.b|c)"}'
    assert rate_interval(1, 15) == 60
    with pytest.raises(KeyError):
        filled('x{model=~"$model"}')
