"""What is notified when a generation has ended."""

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


def test_milliseconds_of_a_generation_are_rounded_since_their_sum_is_a_saving() -> None:
    record = generation_record("acme")
    assert record.generation_ms(2.0) == 0  # it was not sent
    record.sent_at = 1.0
    assert [record.generation_ms(now) for now in (1.0044, 1.0047)] == [4, 5]
