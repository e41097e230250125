"""What header lines, log lines and metric labels are made of is what they are cached by."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.inference.response_headers import ResponseHeaders
from router.core.endpoints.chat import CHAT
from router.core.endpoints.messages import MESSAGES
from router.core.types import BypassReason, CacheStatus
from router.flow.attempts.continuation.continuation_facts import Continuation
from router.flow.exchange import Exchange, request_facts
from router.flow.request_kind import RequestKind, ResponseKind, request_kind, response_kind
from tests.support.chosen_prompt import chosen_prompt
from tests.support.inflight_factory import generation_record

GENERATION: Final = generation_record(model="m")
CONTINUED: Final = generation_record(model="m")
CONTINUED.continuations.append(Continuation("reset", "continued", "e", 3))
CHOSEN: Final = generation_record(model="m")
CHOSEN.placement = chosen_prompt()
CHANGES: Final[dict[str, dict[str, Any]]] = {
    "status": {"status": 502},
    "stream": {"stream": True},
    "cache_status": {"cache_status": CacheStatus.MISS},
    "from_local_cache": {"from_local_cache": True},
    "has_key": {"key": "rh:1:t:m:s:r:q"},
    "has_age": {"age": 3, "ttl": 5},
    "bypass_reason": {"bypass_reason": BypassReason.POLICY},
    "miss_reason": {"miss_reason": "new"},
    "task": {"task": "code"},
    "engine": {"engine": "e0"},
    "fallback_model": {"fallback_model": "phi"},
    "adjusted_fields": {"adjusted_fields": ("min_p",)},
    "media_type": {"media_type": "text/vtt"},
    "tenant": {"tenant": "acme"},
    "path": {"endpoint": MESSAGES},
    "model": {"model": "llama"},
    "outcome": {"outcome": "left"},
    "error_reason": {"error_reason": "timeout"},
    "has_first_token": {"first_token_at": 0.5},
    "key_id": {"key_id": "0a1b2c3d"},
    "has_generation": {"generation": GENERATION},
    "was_continued": {"generation": CONTINUED},
    "had_choice": {"generation": CHOSEN},
    "has_trace_id": {"trace_id": "0" * 31 + "1"},
    "has_engine_request_id": {"engine_request_id": "theirs"},
}
"""By the field of a kind: the facts of an exchange that change it."""

EXCHANGES: Final = st.lists(st.sampled_from(sorted(CHANGES))).map(
    lambda names: exchange(**{name: value for field in names for name, value in CHANGES[field].items()})
)


def exchange(**facts: Any) -> Exchange:
    made = Exchange(endpoint=CHAT, request_id="r1", started_at=0.0)
    for name, value in facts.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return made


def fields_of(kind: RequestKind) -> dict[str, Any]:
    return {**kind.response._asdict(), **{name: value for name, value in kind._asdict().items() if name != "response"}}


def test_every_field_of_a_kind_is_tested() -> None:
    assert {*ResponseKind._fields, *RequestKind._fields} - {"response"} == set(CHANGES)


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_a_fact_changes_its_field_alone_and_the_key_of_the_caches(field: str) -> None:
    # Only what has a generation can be continued, or had a choice.
    plain = exchange(**CHANGES["has_generation"]) if field in ("was_continued", "had_choice") else exchange()
    changed = exchange(**CHANGES[field])
    before, after = fields_of(request_kind(plain)), fields_of(request_kind(changed))
    assert {name for name in before if before[name] != after[name]} == {field}
    assert request_facts(plain) != request_facts(changed)
    assert request_kind(changed).response == response_kind(changed)


@given(EXCHANGES, EXCHANGES)
def test_a_cached_header_template_gives_what_a_new_one_gives(earlier: Exchange, later: Exchange) -> None:
    headers = ResponseHeaders()
    headers.render(earlier)
    assert headers.render(later) == ResponseHeaders().render(later)
