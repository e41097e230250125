"""The metrics page of a simulated engine, without a process."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
from prometheus_client import generate_latest

from engines.simulator.engine import EngineCore
from engines.simulator.faults import Fault, FaultRegistry
from engines.simulator.metrics import EngineCollector, MetricsPage
from engines.simulator.settings import SimulatorSettings


class Page:
    """A page, and the engine that it shows."""

    def __init__(self) -> None:
        settings = SimulatorSettings(model="llama", draft="d")
        self.engine = EngineCore(settings, lambda: 0.0)
        self.faults = FaultRegistry()
        parts = self.engine.scheduler, self.engine.speculation, self.engine.counters
        self._page = MetricsPage(EngineCollector(settings, *parts, self._kv_fault, 0.0), self._kv_fault)

    def _kv_fault(self) -> Fault | None:
        return self.faults.engine_fault("kv")

    def samples(self) -> dict[str, str]:
        lines = [line for line in self._page.render().decode().splitlines() if line.startswith("vllm:")]
        return dict(line.rsplit(" ", 1) for line in lines)


def test_metrics_of_the_engine_that_have_not_changed_are_formatted_once() -> None:
    page = Page()
    with patch("engines.simulator.metrics.generate_latest", wraps=generate_latest) as formatting:
        assert page.samples() == page.samples()
    assert formatting.call_count == 3  # those of the Python process each time


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
