"""The dashboard to open first: traffic, latency, errors, and what the cache is worth."""

from typing import Final

from grafana_foundation_sdk.models import units

from tools.dashboards.colours import BAD, BY_CACHE_RESULT, GOOD, NEUTRAL, SPENT_AND_SAVED, WARNING
from tools.dashboards.description import TOKENS_PER_SECOND, Dashboard, Panel, Query, Row
from tools.dashboards.promql import Promql
from tools.dashboards.recording_rules import (
    DURATION,
    ENERGY,
    GPU_SECONDS,
    INTER_TOKEN,
    LOOKUPS,
    OVERHEAD,
    REQUESTS,
    TTFT,
    RecordingRule,
)
from tools.dashboards.shared_panels import (
    FAILED,
    NOT_BYPASSED,
    engine_states,
    fallbacks,
    redis_state,
    requests_by_cache_result,
    tokens,
)

VARIABLES: Final = ("instance", "model")
_promql = Promql(*VARIABLES)


def _quantile_panels(what: str, description: str, rule: RecordingRule) -> tuple[Panel, ...]:
    return tuple(
        Panel(
            title=f"{what}, p{quantile * 100:g}",
            description=description,
            unit=units.Seconds,
            queries=(Query(_promql.quantile(quantile, rule, "cache"), "{{cache}}"),),
            colours=BY_CACHE_RESULT,
        )
        for quantile in (0.5, 0.95, 0.99)
    )


def _stat(title: str, description: str, unit: str, expr: str, *thresholds: tuple[float, str]) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        queries=(Query(expr, title),),
        kind="stat",
        width=4,
        height=4,
        minimum=None,
        thresholds=thresholds or ((0, NEUTRAL),),
    )


SUMMARY: Final = Row(
    "Summary",
    (
        _stat(
            "Requests", "Requests that have ended, per second.", units.RequestsPerSecond, _promql.recorded(REQUESTS)
        ),
        _stat(
            "Hit ratio", "Hits among the requests that were looked up (all but bypasses).", units.PercentUnit,
            _promql.share(LOOKUPS, 'result="hit"', NOT_BYPASSED), (0, WARNING), (0.2, GOOD),
        ),
        _stat(
            "Errors", "Requests that ended with a 5xx, or whose stream broke off.", units.PercentUnit,
            _promql.share(REQUESTS, FAILED), (0, GOOD), (0.01, WARNING), (0.05, BAD),
        ),
        _stat(
            "First token, p99", "Time to first token of all requests, hits included.", units.Seconds,
            _promql.quantile(0.99, TTFT), (0, GOOD), (2, WARNING), (10, BAD),
        ),
        _stat(
            "GPU time saved", "Seconds of generation that the cache saved, in the time range.", units.Seconds,
            _promql.increase("llm_gpu_seconds_total", matchers='kind="saved"'), (0, GOOD),
        ),
        _stat(
            "Engines down", "Engines that a router cannot reach.", units.Short,
            f"count(min by (engine) ({_promql.select('roundhouse_engine_up')}) == 0) or vector(0)", (0, GOOD), (1, BAD),
        ),
    ),
)  # fmt: skip

TRAFFIC: Final = Row(
    "Traffic",
    (
        requests_by_cache_result(_promql),
        Panel(
            title="Responses by status",
            description="499: the client disconnected; broken: a stream that failed after its first token.",
            unit=units.RequestsPerSecond,
            queries=(Query(_promql.rate("llm_requests_total", "status"), "{{status}}"),),
            colours={"^2": GOOD, "^4": WARNING, "^(5|broken)": BAD},
            stacked=True,
        ),
        Panel(
            title="Rejected requests",
            description="Requests per minute that were rejected before an engine was used, by error code and tenant.",
            unit=units.CountsPerMinute,
            queries=(
                Query(f"60 * {_promql.rate('llm_requests_rejected_total', 'reason, tenant')}", "{{reason}} {{tenant}}"),
            ),
            stacked=True,
        ),
    ),
)

LATENCY: Final = Row(
    "Latency by cache result",
    (
        *_quantile_panels("Time to first token", "From the request's first byte to the first token; over 5 min.", TTFT),
        *_quantile_panels("Duration", "From the request's first byte to the response's last; over 5 min.", DURATION),
        Panel(
            title="Time to first token, distribution",
            description="Requests per second by time to first token. The dots are single requests with their trace id.",
            unit=units.Seconds,
            queries=(Query(_promql.rate("llm_time_to_first_token_seconds_bucket", "le"), "{{le}}", exemplars=True),),
            kind="heatmap",
            width=12,
        ),
        Panel(
            title="Duration, distribution",
            description="Requests per second by duration. The dots are single requests with their trace id.",
            unit=units.Seconds,
            queries=(Query(_promql.rate("llm_request_duration_seconds_bucket", "le"), "{{le}}", exemplars=True),),
            kind="heatmap",
            width=12,
        ),
        Panel(
            title="Inter-token latency",
            description="Mean time between the tokens of a stream, weighted by its tokens; over 5 minutes.",
            unit=units.Seconds,
            queries=tuple(
                Query(_promql.quantile(quantile, INTER_TOKEN, "model"), f"{{{{model}}}} p{quantile * 100:g}")
                for quantile in (0.5, 0.95, 0.99)
            ),
        ),
        Panel(
            title="Router overhead, p99",
            description="Time in the router itself: until a request is sent to an engine, or a hit to the client.",
            unit=units.Seconds,
            queries=(Query(_promql.quantile(0.99, OVERHEAD, "cache"), "{{cache}}"),),
            colours=BY_CACHE_RESULT,
        ),
        Panel(
            title="Tokens per second of a stream",
            description="Speed of streams after their first token: median, and the slowest 5 %.",
            unit=TOKENS_PER_SECOND,
            queries=tuple(
                Query(
                    _promql.quantile_of(quantile, "llm_tokens_per_second_bucket", "model"),
                    f"{{{{model}}}} p{quantile * 100:g}",
                )
                for quantile in (0.5, 0.05)
            ),
        ),
    ),
)

SAVINGS: Final = Row(
    "What the cache is worth",
    (
        tokens(_promql),
        Panel(
            title="GPU time",
            description="Seconds of generation per second: spent by engines, and saved by the cache.",
            unit=units.Short,
            queries=(Query(_promql.recorded(GPU_SECONDS, "kind"), "{{kind}}"),),
            colours=SPENT_AND_SAVED,
        ),
        Panel(
            title="Energy",
            description="Energy per second, where the GPUs' power is known: spent by engines, saved by the cache.",
            unit=units.Watt,
            queries=(Query(_promql.recorded(ENERGY, "kind"), "{{kind}}"),),
            colours=SPENT_AND_SAVED,
        ),
    ),
)

BATCHES: Final = Row(
    "Batches",
    (
        Panel(
            title="Lines of batches",
            description="Lines per second that got a result: generated by an engine, from the cache, or failed.",
            unit=units.CountsPerSecond,
            queries=(Query(_promql.rate("roundhouse_batch_lines_total", "result"), "{{result}}"),),
            colours={"^generated": NEUTRAL, "^cached": GOOD, "^failed": BAD},
            stacked=True,
        ),
        Panel(
            title="Lines of batches in flight",
            description="Lines of batches at engines now, of all routers.",
            unit=units.Short,
            queries=(Query(_promql.sum("roundhouse_batch_lines_in_flight"), "lines"),),
        ),
        Panel(
            title="Open batches",
            description="Batches that have not ended, by what happens to them. Each router reports those of all.",
            unit=units.Short,
            queries=(Query(_promql.max("roundhouse_batches_open", "state"), "{{state}}"),),
            stacked=True,
        ),
    ),
)

STATE: Final = Row(
    "State",
    (
        redis_state(_promql),
        engine_states(_promql),
        fallbacks(_promql),
    ),
)

OVERVIEW: Final = Dashboard(
    uid="roundhouse-overview",
    title="Roundhouse: overview",
    description="Traffic, latency, errors, and what the cache is worth.",
    variables=VARIABLES,
    rows=(SUMMARY, TRAFFIC, LATENCY, SAVINGS, BATCHES, STATE),
)
