"""The dashboard of the cache: what it serves, what it stores, and what goes wrong with its entries."""

from typing import Final

from grafana_foundation_sdk.models import units

from tools.dashboards.colours import BAD, BY_CACHE_RESULT, GOOD
from tools.dashboards.description import Dashboard, Panel, Query, Row
from tools.dashboards.promql import Promql
from tools.dashboards.recording_rules import DURATION, GPU_SECONDS, LOOKUPS, TTFT
from tools.dashboards.shared_panels import NOT_BYPASSED, redis_state, requests_by_cache_result, tokens

VARIABLES: Final = ("instance", "model", "tenant")
_promql = Promql(*VARIABLES)

LOOK_UPS: Final = Row(
    "Look-ups",
    (
        Panel(
            title="Hit ratio by model",
            description="Hits among the requests that were looked up (all but bypasses); over 5 minutes.",
            unit=units.PercentUnit,
            queries=(
                Query(_promql.share(LOOKUPS, 'result="hit"', NOT_BYPASSED, "model"), "{{model}}"),
                Query(_promql.share(LOOKUPS, 'result="hit"', NOT_BYPASSED), "all"),
            ),
            maximum=1,
            colours={"^all$": "text"},
        ),
        Panel(
            title="Served without a generation",
            description="Share of hits, stale and coalesced responses among all requests; over 5 minutes.",
            unit=units.PercentUnit,
            queries=tuple(
                Query(_promql.share(LOOKUPS, f'result="{result}"'), result) for result in ("hit", "coalesced", "stale")
            ),
            maximum=1,
            colours=BY_CACHE_RESULT,
            stacked=True,
        ),
        requests_by_cache_result(_promql),
        Panel(
            title="Time to first token of hits",
            description="Over 5 minutes. Stays at some milliseconds if Redis and the router are well.",
            unit=units.Seconds,
            queries=tuple(
                Query(_promql.quantile(q, TTFT, matchers='cache="HIT"'), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)
            ),
        ),
        Panel(
            title="Duration of hits",
            description="From the request's first byte to the response's last; over 5 minutes.",
            unit=units.Seconds,
            queries=tuple(
                Query(_promql.quantile(q, DURATION, matchers='cache="HIT"'), f"p{q * 100:g}") for q in (0.5, 0.95, 0.99)
            ),
        ),
        redis_state(_promql),
    ),
)

SAVINGS: Final = Row(
    "Savings",
    (
        tokens(_promql),
        Panel(
            title="Share of GPU time saved",
            description="Seconds of generation that the cache saved, of all that were asked for; over 5 minutes.",
            unit=units.PercentUnit,
            queries=(Query(_promql.share(GPU_SECONDS, 'kind="saved"', by="model"), "{{model}}"),),
            maximum=1,
        ),
        Panel(
            title="Energy saved",
            description="In the time range of the dashboard, where the power of the GPUs is known.",
            unit=units.KiloWattHour,
            queries=(
                Query(_promql.increase("llm_energy_joules_total", "model", 'kind="saved"') + " / 3.6e6", "{{model}}"),
            ),
            kind="stat",
            minimum=None,
            thresholds=((0, GOOD),),
        ),
    ),
)  # fmt: skip

ENTRIES: Final = Row(
    "Entries",
    (
        Panel(
            title="Writes by result",
            description="Responses per second, by what became of them; docs/operating.md explains the results.",
            unit=units.WritesPerSecond,
            queries=(Query(_promql.rate("llm_cache_writes_total", "result"), "{{result}}"),),
            width=12,
            colours={"^stored$": GOOD, "^(failed|dropped|error)$": BAD},
            stacked=True,
        ),
        Panel(
            title="Damaged entries",
            description="Entries with a wrong checksum or field that were found and deleted, in the time range.",
            unit=units.Short,
            queries=(Query(_promql.increase("llm_cache_entries_damaged_total"), "damaged"),),
            kind="stat",
            width=12,
            minimum=None,
            thresholds=((0, GOOD), (1, BAD)),
        ),
    ),
)

CACHE: Final = Dashboard(
    uid="roundhouse-cache",
    title="Roundhouse: cache",
    description="What the cache serves, stores and saves.",
    variables=VARIABLES,
    rows=(LOOK_UPS, SAVINGS, ENTRIES),
)
