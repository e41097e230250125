"""What a request's body is, after it has been parsed and checked."""

import pytest

from router.core.cache.key import ContextMarkers
from router.core.endpoints.chat import CHAT
from router.errors import ApiError
from router.flow.request_resolver import RequestResolver
from router.flow.tenant_rules import TenantRules
from router.upstream.catalog import Catalog, Model

USUAL = b'{ "model":"llama","messages":[{"role":"user","content":"Hi"}]'
REMOTE = b'{"remote_host":"10.0.0.9"}'


def engine_gets(more: bytes) -> bytes:
    catalog = Catalog([Model("llama", "1")], [])
    resolver = RequestResolver(
        catalog=catalog, log_odds_of=lambda _: 0.0, markers=ContextMarkers(), rules=TenantRules(catalog, {}, {})
    )
    return resolver.resolve(CHAT, "acme", USUAL + more + b"}").request.body


@pytest.mark.parametrize(
    ("more", "last"),
    [
        (b',"kv_transfer_params":%b,"kv_transfer_params":null' % REMOTE, b'"kv_transfer_params":null'),
        (b',"kv\\u005ftransfer_params":%b,"kv_transfer_params":{}' % REMOTE, b'"kv_transfer_params":{}'),
        (b',"bootstrap_host":"10.0.0.9","bootstrap_host":null', b'"bootstrap_host":null'),
        (b',"vllm_xargs":{"kv_transfer_params":%b},"vllm_xargs":{"a":1}' % REMOTE, b'"vllm_xargs":{"a":1}'),
    ],
)
def test_of_a_field_that_needs_a_right_an_engine_gets_only_the_value_that_was_checked(more: bytes, last: bytes) -> None:
    assert engine_gets(more) == USUAL.replace(b"{ ", b"{") + b"," + last + b"}"


def test_the_last_value_of_a_field_that_needs_a_right_is_the_one_that_is_checked() -> None:
    with pytest.raises(ApiError) as caught:
        engine_gets(b',"kv_transfer_params":null,"kv_transfer_params":%b' % REMOTE)
    assert (caught.value.status, caught.value.code) == (400, "field_not_allowed")


def test_another_body_is_what_the_client_sent() -> None:
    assert engine_gets(b',"seed":1,"seed":2') == USUAL + b',"seed":1,"seed":2}'
