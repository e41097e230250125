"""The metrics page of a simulated engine, without a process."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from engines.simulator.control.faults import Fault, FaultRegistry
from engines.simulator.engine.core import EngineCore
from engines.simulator.engine.sleep_mode import SleepMode
from engines.simulator.metrics import EngineCollector, MetricsPage
from engines.simulator.metrics_text import metrics_text
from engines.simulator.settings import SimulatorSettings


class Page:
    """A page, and the engine that it shows."""

    def __init__(self, model: str = "llama") -> None:
        settings = SimulatorSettings(model=model, draft="d")
        self.engine = EngineCore(settings, lambda: 0.0)
        self.faults = FaultRegistry()
        parts = self.engine.scheduler, self.engine.speculation, self.engine.counters
        sleep_mode = SleepMode([self.engine], settings)
        self.collector = EngineCollector(settings, *parts, self._kv_fault, sleep_mode, 1764338829.25)
        self._page = MetricsPage([self.collector], self._kv_fault)

    def _kv_fault(self) -> Fault | None:
        return self.faults.engine_fault("kv")

    def samples(self) -> dict[str, str]:
        lines = [line for line in self._page.render().decode().splitlines() if line.startswith("vllm:")]
        return dict(line.rsplit(" ", 1) for line in lines)


def test_metrics_of_the_engine_that_have_not_changed_are_formatted_once() -> None:
    page = Page()
    with patch("engines.simulator.metrics.metrics_text", wraps=metrics_text) as formatting:
        assert page.samples() == page.samples()
    assert formatting.call_count == 1


@pytest.mark.parametrize("model", ["llama", 'a "b"\\\nc, d="e"'])
def test_the_text_is_that_of_prometheus_client(model: str) -> None:
    page = Page(model)
    page.engine.counters.generation_tokens = 12_345_678_901
    page.engine.counters.record_request(3, 17)
    registry = CollectorRegistry()
    registry.register(page.collector)
    assert metrics_text(page.collector.collect()) == generate_latest(registry)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda page: page.faults.add({"fault": "kv", "usage": 0.5}), "kv_cache_usage_perc"),
        (lambda page: setattr(page.engine.scheduler.counts, "preemptions", 1), "num_preemptions_total"),
        (lambda page: setattr(page.engine.speculation.counts, "drafts", 1), "spec_decode_num_drafts_total"),
        (lambda page: setattr(page.engine.counters, "generation_tokens", 1), "generation_tokens_total"),
        (lambda page: page.engine.counters.record_request(1, 1), "request_params_n_count"),
    ],
)
def test_a_change_of_any_part_of_the_engine_is_on_the_next_page(change: Callable[[Page], None], name: str) -> None:
    page = Page()
    before = page.samples()
    change(page)
    changed = dict(page.samples().items() - before.items())
    assert [each for each in changed if each.startswith(f"vllm:{name}{{")], changed
