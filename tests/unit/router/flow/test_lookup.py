"""The cache policy that the settings describe."""

from router.core.cache.policy import CacheDecision
from router.flow.lookup import CachePolicy, TenantCachePolicy, cache_policy
from router.settings import parse
from tests.support.router_server import router_config

CACHE = 'ttl = "1h"\nstore = "deterministic"\nstale_if_error = "2h"\n'


def policy(rest: str = "") -> CachePolicy:
    engines = {"one": ("llama", "any", "http://127.0.0.1:1")}
    return cache_policy(parse(router_config("unix:///x", engines, cache=CACHE, rest=rest), {}))


def test_what_a_tenant_does_not_set_for_itself_is_as_for_all() -> None:
    own = '[[tenant]]\nname = "own"\nttl = "1m"\nstore = "all"\n'
    described = policy('[auth]\nmode = "header"\n[[tenant]]\nname = "plain"\n' + own)
    assert described.stale_if_error == 7200
    assert described.tenants == {
        "plain": TenantCachePolicy(3600, "deterministic"),
        "own": TenantCachePolicy(60, "all"),
    }


def test_the_cache_is_restricted_where_a_model_or_a_tenant_says_so() -> None:
    plain = policy()
    assert not plain.is_restricted
    tenants = '[auth]\nmode = "header"\n[[tenant]]\nname = "second"\ncache = "off"\n[[tenant]]\nname = "first"\n'
    decision = CacheDecision(None, may_store=True)
    restricted = policy(tenants)
    assert restricted.is_restricted
    assert restricted.restrict(decision, "first", "llama") == decision
    assert not restricted.restrict(decision, "second", "llama").may_store


def test_an_open_router_has_a_policy_for_the_default_tenant_though_it_has_no_table() -> None:
    assert policy().tenants == {"default": TenantCachePolicy(3600, "deterministic")}


def test_samples_are_those_of_the_tenant_else_of_the_model_else_of_the_cache() -> None:
    tenants = '[auth]\nmode = "header"\n[[tenant]]\nname = "own"\nsamples = 3\n[[tenant]]\nname = "plain"\n'
    engines = {"one": ("llama", "any", "http://127.0.0.1:1"), "two": ("mistral", "any", "http://127.0.0.1:2")}
    text = router_config("unix:///x", engines, cache="samples = 2", rest=tenants)
    described = cache_policy(parse(text.replace('name = "mistral"', 'name = "mistral"\nsamples = 4', 1), {}))
    assert described.has_samples
    assert [described.samples("plain", model) for model in ("llama", "mistral")] == [2, 4]
    assert [described.samples("own", model) for model in ("llama", "mistral")] == [3, 3]


def test_without_samples_none_are_counted() -> None:
    assert not policy().has_samples
    assert not policy('[auth]\nmode = "header"\n[[tenant]]\nname = "own"\nsamples = 1\n').has_samples
    assert policy('[auth]\nmode = "header"\n[[tenant]]\nname = "own"\nsamples = 2\n').has_samples
