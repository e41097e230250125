"""The dashboard of the engines and their drafts."""

from typing import Final

from grafana_foundation_sdk.models import units

from tools.dashboards.colours import BAD, BREAKER_STATES, GOOD, WARNING
from tools.dashboards.description import TOKENS_PER_SECOND, Dashboard, Panel, Query, Row
from tools.dashboards.promql import Promql
from tools.dashboards.recording_rules import RESTARTS, TTFT
from tools.dashboards.shared_panels import engine_states, fallbacks

VARIABLES: Final = ("instance", "model", "engine")
_promql = Promql(*VARIABLES)


def _gauge(title: str, description: str, unit: str, metric: str, *, maximum: float | None = None) -> Panel:
    """A value that each router reports of an engine; the highest one is shown."""
    query = Query(_promql.max(metric, "engine"), "{{engine}}")
    return Panel(title=title, description=description, unit=unit, queries=(query,), maximum=maximum)


LOAD: Final = Row(
    "Load",
    (
        Panel(
            title="Requests in flight",
            description="Requests of all routers at the engine.",
            unit=units.Short,
            queries=(Query(_promql.sum("llm_requests_in_flight", "engine"), "{{engine}}"),),
            stacked=True,
        ),
        Panel(
            title="Requests waiting",
            description="Generations that wait in the routers for a slot at an engine of the model.",
            unit=units.Short,
            queries=(Query(_promql.sum("llm_requests_queued", "model"), "{{model}}"),),
            stacked=True,
        ),
        Panel(
            title="Wait for a slot",
            description="How long 99 % of the generations waited at most for a slot at an engine, by model and tenant.",
            unit=units.Seconds,
            queries=(
                Query(
                    _promql.quantile_of(0.99, "llm_queue_seconds_bucket", "model, tenant"),
                    "{{model}} {{tenant}} p99",
                ),
            ),
        ),
        Panel(
            title="Requests that found no engine up",
            description="Requests per second for models whose engines are started by demand, by what became of them.",
            unit=units.RequestsPerSecond,
            queries=(Query(_promql.rate("llm_engine_wakes_total", "model, result"), "{{model}} {{result}}"),),
            stacked=True,
        ),
        Panel(
            title="Requests by engine",
            description="Requests per second by the engine that generated the response; hits count for it too.",
            unit=units.RequestsPerSecond,
            queries=(
                Query(_promql.rate("llm_requests_total", "engine", 'engine!="none"'), "{{engine}}"),
            ),
            stacked=True,
        ),
        Panel(
            title="KV cache usage",
            description="Share of the engine's KV cache in use. Near 1, vLLM preempts sequences.",
            unit=units.PercentUnit,
            queries=(Query(_promql.max("vllm_kv_cache_usage", "engine"), "{{engine}}"),),
            maximum=1,
            thresholds=((0, GOOD), (0.8, WARNING), (0.9, BAD)),
        ),
        _gauge(
            "Prefix cache hits", "Share of prompt tokens found in vLLM's prefix cache, since its start.",
            units.PercentUnit, "vllm_prefix_cache_hit_rate", maximum=1,
        ),
        _gauge(
            "Speed of a request", "Measured tokens per second of one request, for its best task.", TOKENS_PER_SECOND,
            "roundhouse_engine_tokens_per_second",
        ),
    ),
)  # fmt: skip

_PROMPT_TOKENS: Final = _promql.rate("roundhouse_prefix_tokens_total", "engine", 'result=~"expected|new"')
_HELD_TOKENS: Final = {
    result: _promql.rate("roundhouse_prefix_tokens_total", "engine", f'result="{result}"')
    for result in ("expected", "found")
}

CHOICE: Final = Row(
    "Choice of an engine",
    (
        Panel(
            title="Prefixes, expected and found",
            description="Share of prompt tokens that the chosen engine was believed to hold in its prefix cache, and "
            "that it reports to have had there.",
            unit=units.PercentUnit,
            queries=tuple(
                Query(f"{tokens} / ({_PROMPT_TOKENS} > 0)", f"{{{{engine}}}} {result}")
                for result, tokens in _HELD_TOKENS.items()
            ),
            width=12,
        ),
        Panel(
            title="Time to first token, expected and real",
            description="Of streams whose engine was chosen by it; the real time is that of all misses of the model.",
            unit=units.Seconds,
            queries=(
                *(
                    Query(
                        _promql.quantile_of(q, "roundhouse_expected_ttft_seconds_bucket", "model"),
                        f"{{{{model}}}} expected p{q * 100:g}",
                    )
                    for q in (0.5, 0.95)
                ),
                *(
                    Query(_promql.quantile(q, TTFT, "model", 'cache="MISS"'), f"{{{{model}}}} real p{q * 100:g}")
                    for q in (0.5, 0.95)
                ),
            ),
            width=12,
        ),
    ),
)

SPECULATION: Final = Row(
    "Speculation",
    (
        Panel(
            title="Acceptance",
            description="Share of the draft's tokens that the target accepted, since the engine's start.",
            unit=units.PercentUnit,
            queries=(Query(_promql.by_draft("vllm_spec_acceptance_rate"), "{{engine}} {{draft}}"),),
            maximum=1,
        ),
        Panel(
            title="Tokens per step",
            description="Tokens per step of the target, since the engine's start; 1 without a draft.",
            unit=units.Short,
            queries=(Query(_promql.by_draft("vllm_spec_tokens_per_step"), "{{engine}} {{draft}}"),),
        ),
        Panel(
            title="Whether the draft pays",
            description="Whether the draft makes the engine faster at the task than the same engine without it.",
            unit=units.Short,
            queries=(Query(_promql.max("roundhouse_draft_pays", "engine, task"), "{{engine}}: {{task}}"),),
            kind="state timeline",
            texts={0: ("slower", BAD), 1: ("faster", GOOD)},
        ),
        Panel(
            title="Tokens per step by classifier bin",
            description="As a router measured them: bin 0 is certainly chat, bin 7 certainly code.",
            unit=units.Short,
            queries=(Query(_promql.max("roundhouse_draft_tokens_per_step", "engine, bin"), "{{engine}} bin {{bin}}"),),
            width=24,
        ),
    ),
)  # fmt: skip

FAILURES: Final = Row(
    "Failures",
    (
        engine_states(_promql),
        Panel(
            title="Breakers",
            description="The worst state over all routers.",
            unit=units.Short,
            queries=(Query(_promql.max("roundhouse_breaker_state", "engine"), "{{engine}}"),),
            kind="state timeline",
            texts=BREAKER_STATES,
        ),
        Panel(
            title="Restarts",
            description="Restarts by the watchdog since the start of `roundhouse up`, by reason.",
            unit=units.Short,
            queries=(
                Query(_promql.max("roundhouse_watchdog_restarts_total", "engine, reason"), "{{engine}}: {{reason}}"),
            ),
        ),
        Panel(
            title="Failed attempts",
            description="Attempts per second that failed and were repeated if possible, by reason.",
            unit=units.OpsPerSecond,
            queries=(Query(_promql.rate("llm_retries_total", "engine, reason"), "{{engine}}: {{reason}}"),),
            stacked=True,
        ),
        Panel(
            title="Continued streams",
            description="Streams per second that an engine broke off, by the failure and by what followed.",
            unit=units.OpsPerSecond,
            queries=(
                Query(
                    _promql.rate("llm_continuations_total", "model, reason, result"),
                    "{{model}}: {{reason}}, {{result}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            title="Tokens of continued streams",
            description="Tokens per second of prompts and responses that engines processed a second time.",
            unit=TOKENS_PER_SECOND,
            queries=(Query(_promql.rate("llm_continuation_tokens_total", "model"), "{{model}}"),),
        ),
        fallbacks(_promql),
        Panel(
            title="Restarts in the last hour",
            description="By the watchdog. It drains an engine that it has restarted too often (`max_restarts`).",
            unit=units.Short,
            queries=(Query(_promql.select(RESTARTS.record), "{{engine}}"),),
            kind="stat",
            minimum=None,
            thresholds=((0, GOOD), (1, WARNING), (2, BAD)),
        ),
    ),
)

GPUS: Final = Row(
    "GPUs",
    (
        _gauge(
            "Temperature", "Highest temperature of the engine's GPUs, where `roundhouse up` can read it.",
            units.Celsius, "roundhouse_engine_temperature_celsius",
        ),
        _gauge(
            "Power", "Power draw of the engine's GPUs, where `roundhouse up` can read it.", units.Watt,
            "roundhouse_engine_power_watts",
        ),
        _gauge(
            "Capacity", "Share of its in-flight limit that the engine may get; less while its GPU is too hot.",
            units.PercentUnit, "roundhouse_engine_capacity", maximum=1,
        ),
    ),
)  # fmt: skip

ENGINES: Final = Dashboard(
    uid="roundhouse-engines",
    title="Roundhouse: engines and speculation",
    description="Load, failures and drafts of the engines, and their GPUs.",
    variables=VARIABLES,
    rows=(LOAD, CHOICE, SPECULATION, FAILURES, GPUS),
)
