"""Who is told of a generation that has ended."""

from router.flow.engine_selection import EngineSelector
from router.flow.exchange import GenerationRecord
from router.flow.generation import record_generation
from router.shared.rate_limits import TenantLimits
from tests.support.inflight_factory import generation_record


class Selector(EngineSelector):
    def __init__(self) -> None:
        self.recorded: list[GenerationRecord] = []

    def record_generation(self, record: GenerationRecord) -> None:
        self.recorded.append(record)


class Limits(TenantLimits):
    def __init__(self) -> None:
        self.subtracted: list[tuple[str, int]] = []

    def subtract_tokens(self, tenant: str, tokens: int) -> None:
        self.subtracted.append((tenant, tokens))


def test_a_generation_is_counted_and_measured_and_its_tenant_pays_for_its_tokens() -> None:
    metrics: list[GenerationRecord] = []
    selector, limits = Selector(), Limits()
    reported, estimated = generation_record("acme"), generation_record("beta")
    reported.prompt_tokens, reported.completion_tokens = 3, 4
    estimated.estimated_tokens = 5
    for record in (reported, estimated):
        record_generation(metrics.append, selector, limits, record)
    assert limits.subtracted == [("acme", 7), ("beta", 5)]
    assert metrics == selector.recorded == [reported, estimated]
