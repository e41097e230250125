"""The alerts. Each has a section in docs/runbooks.md, and tests in alert_tests.py that it fires and stays silent.

None of them fires for a router without traffic, right after a start, or because a metric is absent.
"""

import re
from typing import Final, Literal, NamedTuple

from tools.dashboards.recording_rules import ERROR_RATIO, HIT_RATIO, LOOKUPS, REQUESTS, RESTARTS, TTFT_P99

RUNBOOKS: Final = "docs/runbooks.md"

_LOOKUPS: Final = LOOKUPS.record + '{result!="bypass"}'


class Alert(NamedTuple):
    """`for_`: how long the condition must hold. `description`: a template with the value."""

    name: str
    expr: str
    for_: str
    severity: Literal["critical", "warning", "info"]
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        """The anchor of its section, as in a link: TimeToFirstTokenHigh is time-to-first-token-high."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", self.name).lower()


def _at_least(rate: str, count: int) -> str:
    """So many in five minutes: a share or a quantile of fewer says little."""
    return f"sum by (model) ({rate}) * 300 >= {count}"


def _problems(matchers: str, *labels: str) -> str:
    """Sentences of roundhouse_problem, and a space behind each; `labels` of the alert are for `%[1]q` of `matchers`.

    Those of now, since the ones before a change of the cause would contradict them. Workers answer in turn, and one may
    see nothing wrong: so without any of now, the last one of two minutes.
    """
    now = f"roundhouse_problem{{{matchers}}}"
    last = f"topk(1, max by (problem) (max_over_time(timestamp({now})[2m:15s])))"
    series = f"max by (problem) ({now}) or on() {last}"
    values = "".join(f" $labels.{label}" for label in labels)
    return f"{{{{ range query (printf `{series}`{values}) }}}}The router says: {{{{ .Labels.problem }}}}. {{{{ end }}}}"


_ENGINE_PROBLEMS: Final = _problems('kind="engine", subject=%[1]q', "engine")
_MODEL_PROBLEMS: Final = _problems('kind="model", subject=%[1]q', "model")
_REDIS_PROBLEMS: Final = _problems('kind="redis"')
_OWN_REDIS_PROBLEMS: Final = _problems('kind="redis", job=%[1]q, instance=%[2]q', "job", "instance")


def _usual_first_token() -> str:
    """The seconds that are normal for a model. It depends on the model, its prompts and its hits: so its own week.

    Twice the hour of a week ago, at least 200 ms; 2 s for a model without traffic then.
    """
    last_week = f"avg_over_time({TTFT_P99.record}[1h] offset 1w)"
    return f"(clamp_min(2 * {last_week}, 0.2) or 0 * {TTFT_P99.record} + 2)"


ALERTS: Final = (
    Alert(
        "TimeToFirstTokenHigh",
        f"{TTFT_P99.record} > {_usual_first_token()} and on (model) {_at_least(REQUESTS.record, 20)}",
        "5m",
        "warning",
        "The time to first token of {{ $labels.model }} is high",
        "99 % of the requests get their first token within {{ $value | humanizeDuration }}; "
        "more than twice the time of a week ago, or than 2 s where it is unknown.",
    ),
    Alert(
        "KVCacheNearlyFull",
        "max by (engine) (vllm_kv_cache_usage) > 0.9",
        "2m",
        "warning",
        "The KV cache of {{ $labels.engine }} is nearly full",
        "{{ $value | humanizePercentage }} of the KV cache are in use; more than 90 %.",
    ),
    Alert(
        "RequestsRejected",
        "sum by (reason, tenant) (rate(llm_requests_rejected_total[5m])) * 60 > 5",
        "2m",
        "warning",
        "Requests of {{ $labels.tenant }} are rejected: {{ $labels.reason }}",
        '{{ $value | printf "%.1f" }} requests a minute of tenant {{ $labels.tenant }} are rejected with '
        "{{ $labels.reason }}; more than 5.",
    ),
    Alert(
        "DraftAcceptanceLow",
        "max by (engine) (vllm_spec_acceptance_rate) < 0.2"
        ' and on (engine) sum by (engine) (rate(llm_requests_total{engine!="none"}[15m])) > 0',
        "15m",
        "warning",
        "The draft of {{ $labels.engine }} is rarely accepted",
        "{{ $value | humanizePercentage }} of the draft's tokens are accepted; less than 20 %.",
    ),
    Alert(
        "CacheHitRatioLow",
        f"avg_over_time({HIT_RATIO.record}[30m]) < 0.2 and on (model) {_at_least(_LOOKUPS, 50)}",
        "30m",
        "info",
        "The hit ratio of {{ $labels.model }} is low",
        "{{ $value | humanizePercentage }} of the requests of the last 30 minutes were hits; less than 20 %.",
    ),
    Alert(
        "EngineDown",
        # Not for a model whose engines are started by demand, as long as no router reaches any of them.
        "min by (engine) (roundhouse_engine_up) == 0"
        " unless on (engine) min by (engine) (roundhouse_engine_asleep) == 1",
        "1m",
        "critical",
        "The engine {{ $labels.engine }} is down",
        "A router has not reached {{ $labels.engine }} for a minute (roundhouse_engine_up is {{ $value }}). "
        f"{_ENGINE_PROBLEMS}`roundhouse status` says since when and why.",
    ),
    Alert(
        "EngineDoesNotStart",
        'sum by (model) (increase(llm_engine_wakes_total{result="timeout"}[10m])) > 0',
        "0m",
        "critical",
        "No engine of {{ $labels.model }} starts",
        'Requests of the last 10 minutes that waited in vain for an engine to start: {{ $value | printf "%.0f" }}. '
        f"{_MODEL_PROBLEMS}`roundhouse status` says the state of its engines.",
    ),
    Alert(
        "BreakerOpen",
        # An open breaker becomes half-open after `cooldown` (10 s), and opens again if the next request fails.
        "max by (engine) (roundhouse_breaker_state) >= 1"
        " and on (engine) max by (engine) (max_over_time(roundhouse_breaker_state[45s])) == 2",
        "1m",
        "critical",
        "The breaker of {{ $labels.engine }} is open",
        "The breaker has not closed for a minute (its state is {{ $value }}; 1 is half-open, 2 is open). "
        f"{_ENGINE_PROBLEMS}`roundhouse status` says what else is wrong.",
    ),
    Alert(
        "RedisDown",
        "roundhouse_redis_up == 0",
        "1m",
        "critical",
        "{{ $labels.instance }} does not reach Redis",
        "Redis has been down for a minute (roundhouse_redis_up is {{ $value }}): every request is a bypass. "
        f"{_OWN_REDIS_PROBLEMS}`roundhouse status` says since when.",
    ),
    Alert(
        "CacheWritesFailing",
        # What Redis refuses although it answers; while it is down, responses are "dropped".
        'sum(rate(llm_cache_writes_total{result="failed"}[5m]))'
        ' / sum(rate(llm_cache_writes_total{result=~"stored|failed"}[5m])) > 0.5',
        "2m",
        "critical",
        "Redis refuses entries",
        "Redis has refused {{ $value | humanizePercentage }} of the responses of the last 5 minutes; more than 50 %. "
        f"{_REDIS_PROBLEMS}`roundhouse status` says why, as in: Redis is full.",
    ),
    Alert(
        "EngineRestartLoop",
        f"{RESTARTS.record} >= 2",
        "0m",
        "critical",
        "{{ $labels.engine }} is restarted again and again",
        "The watchdog has restarted {{ $labels.engine }} {{ $value }} times in the last hour.",
    ),
    Alert(
        "ServerErrorsHigh",
        f"{ERROR_RATIO.record} > 0.05 and on (model) {_at_least(REQUESTS.record, 20)}",
        "2m",
        "critical",
        "Requests for {{ $labels.model }} fail",
        "{{ $value | humanizePercentage }} of the requests ended with a 5xx or broke off; more than 5 %. "
        f"{_MODEL_PROBLEMS}`roundhouse status` says what else is wrong.",
    ),
    Alert(
        "CacheEntriesDamaged",
        "increase(llm_cache_entries_damaged_total[15m]) > 0",
        "0m",
        "warning",
        "{{ $labels.instance }} finds damaged entries",
        'Damaged entries that were found and deleted in the last 15 minutes: {{ $value | printf "%.0f" }}.',
    ),
    Alert(
        "BatchesStandStill",
        # Each router reports the batches of all, and its own lines.
        'sum(max by (state) (roundhouse_batches_open{state=~"running|waiting"})) > 0'
        " unless sum(increase(roundhouse_batch_lines_total[5m])) > 0",
        "1h",
        "warning",
        "No batch makes progress",
        "{{ $value }} batches are open, neither paused, nor outside of batch.hours, nor over a budget, and no "
        "line has ended for an hour. The dashboard says what each waits for.",
    ),
    Alert(
        "RouterDown",
        'up{job="roundhouse"} == 0',
        "1m",
        "critical",
        "The router {{ $labels.instance }} is down",
        "Prometheus has not reached {{ $labels.instance }} for a minute (up is {{ $value }}).",
    ),
)
