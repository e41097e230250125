"""Writes PromQL for the panels: each selector gets the dashboard's variables that its metric has as labels."""

from typing import Final

from tools.dashboards.metrics import LABELS
from tools.dashboards.recording_rules import DERIVED, RATES, RecordingRule

RECORDED: Final = {rule.record: rule for rule in (*RATES, *DERIVED)}


class Promql:
    """The queries of a dashboard with these variables."""

    def __init__(self, *variables: str) -> None:
        self._variables = variables

    def select(self, metric: str, matchers: str = "") -> str:
        """A selector of a metric or a recorded series. `matchers`: in addition, such as `kind="saved"`."""
        recorded = RECORDED.get(metric)
        labels = recorded.labels if recorded is not None else ("instance", *LABELS[metric])
        filters = [f'{name}=~"${name}"' for name in self._variables if name in labels]
        return f"{metric}{{{', '.join([*([matchers] if matchers else []), *filters])}}}"

    def sum(self, metric: str, by: str = "", matchers: str = "") -> str:
        return _aggregate("sum", by, self.select(metric, matchers))

    def max(self, metric: str, by: str = "", matchers: str = "") -> str:
        """For gauges that several routers report for one engine."""
        return _aggregate("max", by, self.select(metric, matchers))

    def by_draft(self, metric: str) -> str:
        """A gauge of engines, with the name of each one's draft."""
        # By instance too: while a configuration is rolled out, two routers may name two drafts.
        info = "* on (instance, engine) group_left (draft) roundhouse_engine_info"
        return _aggregate("max", "engine, draft", f"{self.select(metric)} {info}")

    def rate(self, metric: str, by: str = "", matchers: str = "") -> str:
        return _aggregate("sum", by, f"rate({self.select(metric, matchers)}[$__rate_interval])")

    def increase(self, metric: str, by: str = "", matchers: str = "") -> str:
        """Over the time range of the dashboard."""
        return _aggregate("sum", by, f"increase({self.select(metric, matchers)}[$__range])")

    def recorded(self, rule: RecordingRule, by: str = "", matchers: str = "") -> str:
        return self.sum(rule.record, by, matchers)

    def quantile(self, quantile: float, rule: RecordingRule, by: str = "", matchers: str = "") -> str:
        """A quantile of a recorded histogram; NaN without traffic."""
        return _quantile(quantile, self.sum(rule.record, _and_le(by), matchers))

    def quantile_of(self, quantile: float, metric: str, by: str = "") -> str:
        """The same of a histogram of which no rate is recorded."""
        return _quantile(quantile, self.rate(metric, _and_le(by)))

    def share(self, rule: RecordingRule, part: str, whole: str = "", by: str = "") -> str:
        """The share of a rate that `part` selects, of what `whole` selects; no sample if there is nothing of it."""
        total = self.recorded(rule, by, whole)
        return f"({self.recorded(rule, by, part)} or 0 * {total}) / ({total} > 0)"


def _aggregate(operator: str, by: str, expr: str) -> str:
    return f"{operator} by ({by}) ({expr})" if by else f"{operator}({expr})"


def _and_le(by: str) -> str:
    return f"{by}, le" if by else "le"


def _quantile(quantile: float, buckets: str) -> str:
    return f"histogram_quantile({quantile:g}, {buckets})"
