"""The cache salt that an engine receives: that of the tenant or its group, whatever the client sends."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.requests.cache_salt import combine_salts, derive_salts
from router.core.endpoints.requests.request import engine_body
from router.errors import ApiError
from tests.support.factories import chat, completion, embeddings, messages, responses

ACME, BETA = (derive_salts({"acme": None, "beta": None})[name] for name in ("acme", "beta"))


def sent_body(inference_request: InferenceRequest, salt: str | None = ACME, served: str = "served") -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(engine_body(inference_request, served, salt))
    return fields


@pytest.mark.parametrize("groups", [{}, {"default": None}, {"acme": "all", "beta": "all"}])
def test_without_tenants_to_isolate_there_is_no_salt(groups: dict[str, str | None]) -> None:
    assert derive_salts(groups) == {}


def test_a_group_shares_a_salt_and_no_tenant_has_the_salt_of_a_group_of_its_name() -> None:
    salts = derive_salts({"acme": "one", "beta": "one", "gamma": None, "one": None})
    assert salts["acme"] == salts["beta"]
    assert len(set(salts.values())) == 3


def test_salts_are_the_same_in_every_router() -> None:
    assert ACME == "6c6ada8b4c2ae887a251cd4ad5e87a49"


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_no_tenant_can_use_the_salt_of_another(mine: str, theirs: str) -> None:
    one, other = combine_salts(ACME, mine), combine_salts(BETA, theirs)
    assert len({one, other, ACME, BETA, combine_salts(BETA, ACME), combine_salts(ACME, ACME)}) == 6
    assert all(re.fullmatch("[0-9a-f]{32}", salt) for salt in (one, other))
    assert (combine_salts(ACME, mine) == combine_salts(ACME, theirs)) is (mine == theirs)


@pytest.mark.parametrize("served", ["llama", "served"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make", [chat, completion, embeddings, responses, messages])
def test_each_endpoints_request_gets_the_salt_and_nothing_else(make: Any, stream: bool, served: str) -> None:
    for request in (make(stream=stream), make(stream=stream, cache_salt="mine"), make(stream=stream, cache_salt=None)):
        actual, plain = sent_body(request, served=served), sent_body(request, None, served)
        own = plain.pop("cache_salt", None)
        assert actual.pop("cache_salt") == combine_salts(ACME, own)
        assert actual == plain
        assert engine_body(request, served, ACME).count(b'"cache_salt"') == 1


def test_without_a_salt_the_clients_own_is_forwarded_unchanged() -> None:
    assert sent_body(chat(cache_salt="mine"), None)["cache_salt"] == "mine"
    assert "cache_salt" not in sent_body(chat(), None)


@pytest.mark.parametrize("own", ["", 1, ["x"], {}, False])
def test_an_invalid_salt_is_refused(own: Any) -> None:
    with pytest.raises(ApiError) as refused:
        engine_body(chat(cache_salt=own), "served", ACME)
    assert (refused.value.status, refused.value.param) == (400, "cache_salt")
