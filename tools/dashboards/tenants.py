"""The dashboard of the tenants: their traffic, their tokens, their limits, and what the cache saves each."""

from typing import Final

from grafana_foundation_sdk.models import units

from tools.dashboards.description import TOKENS_PER_SECOND, Dashboard, Panel, Query, Row
from tools.dashboards.promql import Promql
from tools.dashboards.recording_rules import GPU_SECONDS, LOOKUPS, REQUESTS, TOKENS
from tools.dashboards.shared_panels import FAILED, NOT_BYPASSED

VARIABLES: Final = ("instance", "model", "tenant")
_promql = Promql(*VARIABLES)

TRAFFIC: Final = Row(
    "Traffic",
    (
        Panel(
            title="Requests",
            description="Requests per second of each tenant.",
            unit=units.RequestsPerSecond,
            queries=(Query(_promql.rate("llm_requests_total", "tenant"), "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            title="Errors",
            description="Share of requests that ended with a 5xx, or whose stream broke off; over 5 minutes.",
            unit=units.PercentUnit,
            queries=(Query(_promql.share(REQUESTS, FAILED, by="tenant"), "{{tenant}}"),),
        ),
        Panel(
            title="Over the limit",
            description="Requests per minute that got 429: over the tenant's limit, or no slot was free in time.",
            unit=units.CountsPerMinute,
            queries=(Query("60 * " + _promql.rate("llm_requests_total", "tenant", 'status="429"'), "{{tenant}}"),),
        ),
        Panel(
            title="Requests by model",
            description="Requests per second of each tenant and model.",
            unit=units.RequestsPerSecond,
            queries=(Query(_promql.rate("llm_requests_total", "tenant, model"), "{{tenant}}: {{model}}"),),
            width=12,
            stacked=True,
        ),
        Panel(
            title="Prompt and completion tokens",
            description="Tokens per second that engines processed for each tenant, as `tokens_per_minute` counts them.",
            unit=TOKENS_PER_SECOND,
            queries=(
                Query(_promql.rate("llm_tokens_total", "tenant, kind", 'kind!="saved"'), "{{tenant}}: {{kind}}"),
            ),
            width=12,
            stacked=True,
        ),
    ),
)  # fmt: skip

SAVINGS: Final = Row(
    "What the cache saves",
    (
        Panel(
            title="Hit ratio",
            description="Hits among the tenant's requests that were looked up; over 5 minutes.",
            unit=units.PercentUnit,
            queries=(Query(_promql.share(LOOKUPS, 'result="hit"', NOT_BYPASSED, "tenant"), "{{tenant}}"),),
            maximum=1,
        ),
        Panel(
            title="Tokens saved",
            description="Completion tokens per second that were served without a generation.",
            unit=TOKENS_PER_SECOND,
            queries=(Query(_promql.recorded(TOKENS, "tenant", 'kind="saved"'), "{{tenant}}"),),
            stacked=True,
        ),
        Panel(
            title="GPU time",
            description="Seconds of generation per second: spent for each tenant, and saved by the cache.",
            unit=units.Short,
            queries=(Query(_promql.recorded(GPU_SECONDS, "tenant, kind"), "{{tenant}}: {{kind}}"),),
        ),
        Panel(
            title="GPU time spent",
            description="In the time range of the dashboard.",
            unit=units.Seconds,
            queries=(Query(_promql.increase("llm_gpu_seconds_total", "tenant", 'kind="spent"'), "{{tenant}}"),),
            kind="stat",
            width=12,
            height=6,
        ),
        Panel(
            title="GPU time saved",
            description="In the time range of the dashboard.",
            unit=units.Seconds,
            queries=(Query(_promql.increase("llm_gpu_seconds_total", "tenant", 'kind="saved"'), "{{tenant}}"),),
            kind="stat",
            width=12,
            height=6,
        ),
    ),
)

TENANTS: Final = Dashboard(
    uid="roundhouse-tenants",
    title="Roundhouse: tenants",
    description="What each tenant uses and what the cache saves it.",
    variables=VARIABLES,
    rows=(TRAFFIC, SAVINGS),
)
