"""Every panel shows something while a real Prometheus scrapes a real router under load."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from tests.dashboards.observed_load import Observation, observe
from tests.dashboards.panel_figures import panel_figures
from tests.dashboards.testbed import KEYS, Testbed
from tests.support.prometheus_process import needs_prometheus
from tests.support.router_process import http_client
from tests.support.waiting import eventually
from tools.dashboards.generated_files import DASHBOARDS
from tools.dashboards.metrics import LABELS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_prometheus]

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.MULTILINE)


class Observed(NamedTuple):
    testbed: Testbed
    observation: Observation
    alerts_when_idle: list[str]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def observed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Observed]:
    folder: Path = tmp_path_factory.mktemp("dashboards")
    async with Testbed(folder) as testbed:
        await testbed.prometheus.wait_for_scrape()
        alerts = [alert["labels"]["alertname"] for alert in await testbed.prometheus.alerts()]
        yield Observed(testbed, await observe(testbed), alerts)


async def test_every_query_of_every_panel_returns_data(observed: Observed) -> None:
    assert observed.observation.without_data == []


async def test_every_query_returns_data_with_all_values_of_the_variables_selected_one_by_one(
    observed: Observed,
) -> None:
    testbed, observation, _ = observed
    selected = {
        "instance": [testbed.router.url.removeprefix("http://")],
        "model": ["llama", "mistral", "unknown"],
        "tenant": list(KEYS),
        "engine": ["llama-chat", "llama-code", "mistral"],
    }
    figures = await panel_figures(testbed.prometheus, DASHBOARDS.values(), observation.since, selected)
    assert [figure.name for figure in figures if not figure.values] == []


async def test_a_selected_engine_is_the_only_one_that_is_shown(observed: Observed) -> None:
    testbed, observation, _ = observed
    figures = await panel_figures(
        testbed.prometheus, [DASHBOARDS["engines"]], observation.since, {"engine": ["mistral"]}
    )
    (up,) = [figure for figure in figures if figure.panel.title == "KV cache usage"]
    assert set(up.values) == {"mistral"}


async def test_ratios_are_between_0_and_1(observed: Observed) -> None:
    shares = [figure for figure in observed.observation.figures if figure.panel.unit == "percentunit"]
    assert len(shares) > 5
    assert [figure.name for figure in shares if not all(0 <= value <= 1 for value in figure.values.values())] == []


async def test_no_rule_fails(observed: Observed) -> None:
    groups = await observed.testbed.prometheus.rules()
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 20
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


async def test_no_alert_is_pending_for_an_idle_router(observed: Observed) -> None:
    assert observed.alerts_when_idle == []


async def test_the_load_fires_the_alert_for_its_damaged_entry(observed: Observed) -> None:
    async def firing() -> bool:
        alerts = await observed.testbed.prometheus.alerts()
        return "CacheEntriesDamaged" in {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    await eventually(firing)


async def test_the_router_exports_the_metrics_of_the_queries_with_their_labels(observed: Observed) -> None:
    async with http_client(observed.testbed.router.url) as http:
        page = (await http.get("/metrics")).text
    exported: dict[str, set[tuple[str, ...]]] = {}
    for name, labels in SAMPLE.findall(page):
        exported.setdefault(name, set()).add(tuple(sorted(re.findall(r'(\w+)="', labels))))
    assert {name: {tuple(sorted(labels))} for name, labels in LABELS.items()} == {
        name: exported.get(name) for name in LABELS
    }


async def test_the_router_logs_no_traceback(observed: Observed) -> None:
    log = observed.testbed.router.log.read_text()
    assert "Traceback" not in log, log[log.find("Traceback") :][:2000]
