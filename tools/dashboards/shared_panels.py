"""Panels that stand in several dashboards, each with the variables of its dashboard."""

from typing import Final

from grafana_foundation_sdk.models import units

from tools.dashboards.colours import BY_CACHE_RESULT, SPENT_AND_SAVED, UP_OR_DOWN
from tools.dashboards.description import TOKENS_PER_SECOND, Panel, Query
from tools.dashboards.promql import Promql
from tools.dashboards.recording_rules import TOKENS

NOT_BYPASSED: Final = 'result!="bypass"'
FAILED: Final = 'status=~"5..|broken"'


def requests_by_cache_result(promql: Promql) -> Panel:
    return Panel(
        title="Requests by cache result",
        description="Requests per second, by what the cache did for them.",
        unit=units.RequestsPerSecond,
        queries=(Query(promql.rate("llm_cache_requests_total", "result"), "{{result}}"),),
        colours=BY_CACHE_RESULT,
        stacked=True,
    )


def tokens(promql: Promql) -> Panel:
    return Panel(
        title="Tokens generated and saved",
        description="Completion tokens per second: from engines, and served without a generation.",
        unit=TOKENS_PER_SECOND,
        queries=(
            Query(promql.recorded(TOKENS, matchers='kind="completion"'), "Generated"),
            Query(promql.recorded(TOKENS, matchers='kind="saved"'), "Saved"),
        ),
        colours=SPENT_AND_SAVED,
    )


def fallbacks(promql: Promql) -> Panel:
    return Panel(
        title="Fallbacks",
        description="Requests per second that a fallback model served.",
        unit=units.RequestsPerSecond,
        queries=(Query(promql.rate("llm_fallbacks_total", "model, fallback"), "{{model}} served by {{fallback}}"),),
    )


def redis_state(promql: Promql) -> Panel:
    return Panel(
        title="Redis",
        description="Whether each router reaches Redis. While it is down, requests bypass the cache.",
        unit=units.Short,
        queries=(Query(promql.select("roundhouse_redis_up"), "{{instance}}"),),
        kind="state timeline",
        texts=UP_OR_DOWN,
    )


def engine_states(promql: Promql) -> Panel:
    return Panel(
        title="Engines",
        description="Whether all routers reach the engine.",
        unit=units.Short,
        queries=(Query(f"min by (engine) ({promql.select('roundhouse_engine_up')})", "{{engine}}"),),
        kind="state timeline",
        texts=UP_OR_DOWN,
    )
