"""In-flight requests that no task generates: a test publishes their frames and ends them."""

from collections.abc import Callable
from typing import Any

from router.core.cache.cache_key import CacheKey
from router.core.endpoints.endpoint import InferenceRequest
from router.flow.exchange import GenerationRecord
from router.flow.request_origin import RequestOrigin
from router.flow.sharing.inflight import InFlightRequest
from router.flow.sharing.new_generation import NewGeneration
from router.shared.cache.purges import BEGINNING
from tests.support.factories import chat

KEY = CacheKey("rh:1:default:llama:0:0:0", ("d",))


def generation_record(tenant: str = "default", **facts: Any) -> GenerationRecord:
    """`facts`: of its origin."""
    origin = RequestOrigin(
        request_id="1", engine_request_id="1", tenant=tenant, model="llama", task="chat", stream=False
    )
    for name, value in facts.items():
        assert hasattr(origin, name)
        setattr(origin, name, value)
    return GenerationRecord(origin)


def in_flight_request(
    id_: str = "1", *,
    request: InferenceRequest | None = None,
    record: GenerationRecord | None = None,
    key: CacheKey | None = KEY,
    join_limit: int = 1000,
    on_no_subscribers: Callable[[InFlightRequest], None] = lambda _: None,
    on_not_joinable: Callable[[InFlightRequest], None] = lambda _: None,
) -> InFlightRequest:  # fmt: skip
    new = NewGeneration(request=request or chat(), record=record or generation_record(), order_engines=lambda: ())
    return InFlightRequest(
        id_, key, new, purge_position=BEGINNING, join_limit=join_limit, on_no_subscribers=on_no_subscribers,
        on_not_joinable=on_not_joinable,
    )  # fmt: skip
