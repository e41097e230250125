"""The values that the gateway works with: cache policy, lookup, full response. See router.flow.gateway."""

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType

import msgspec

from router.core.cache.fingerprint import MissReason
from router.core.cache.policy import Bypass as Bypass
from router.core.cache.policy import CacheDecision, CacheUse, RemoteContentPolicy, restrict
from router.core.cache.policy import StorePolicy as StorePolicy
from router.core.types import Entry
from router.settings import Settings, TenantSettings, tenants


class TenantCachePolicy(msgspec.Struct, frozen=True):
    """`ttl` in seconds; `store_policy`: which of the tenant's responses are stored. See settings.CacheSettings.

    `samples`: None for those of the model.
    """

    ttl: float
    store_policy: StorePolicy
    use: CacheUse = "on"
    samples: int | None = None


class CachePolicy(msgspec.Struct, frozen=True):
    """`tenants`, `models` and `model_samples` by name; `stale_if_error` in seconds. See settings.CacheSettings."""

    tenants: Mapping[str, TenantCachePolicy]
    models: Mapping[str, CacheUse]
    stale_if_error: float
    remote_content: RemoteContentPolicy
    model_samples: Mapping[str, int] = MappingProxyType({})

    @property
    def is_restricted(self) -> bool:
        """Whether some model or tenant does not use the cache, or only reads."""
        return any(use != "on" for use in chain(self.models.values(), (own.use for own in self.tenants.values())))

    @property
    def has_samples(self) -> bool:
        counts = chain(self.model_samples.values(), (own.samples or 1 for own in self.tenants.values()))
        return any(count > 1 for count in counts)

    def samples(self, tenant: str, model: str) -> int:
        return self.tenants[tenant].samples or self.model_samples.get(model, 1)

    def entry_seconds(self, tenant: str) -> float:
        return self.tenants[tenant].ttl + self.stale_if_error

    def restrict(self, decision: CacheDecision, tenant: str, model: str) -> CacheDecision:
        return restrict(decision, self.tenants[tenant].use, self.models.get(model, "on"))


def cache_policy(settings: Settings) -> CachePolicy:
    """The policy of the settings. What a tenant does not set for itself is as for all."""
    cache, own = settings.cache, {tenant.name: tenant for tenant in settings.tenant}
    policies = {}
    for name in tenants(settings):
        tenant = own.get(name, TenantSettings(name=name))  # the default tenant may be without a table
        policies[name] = TenantCachePolicy(
            cache.ttl if tenant.ttl is None else tenant.ttl,
            cache.store if tenant.store is None else tenant.store,
            tenant.cache,
            tenant.samples,
        )
    models = {model.name: model.cache for model in settings.model}
    samples = {model.name: cache.samples if model.samples is None else model.samples for model in settings.model}
    return CachePolicy(policies, models, cache.stale_if_error, cache.remote_content, samples)


class FullResponse(msgspec.Struct, frozen=True):
    """A complete response: JSON, or all frames of a stream."""

    body: bytes
    stream: bool


class Hit(msgspec.Struct, frozen=True):
    """A fresh entry. `body`: the response in the form that the request asks for. `age` in seconds."""

    entry: Entry
    body: bytes
    age: float
    from_local_cache: bool


class Stale(msgspec.Struct, frozen=True):
    """An entry that has outlived its TTL; the other fields are those of a Hit.

    `if_error`: it may only be served in place of an error. Else the client accepts it (`max-stale`).
    """

    entry: Entry
    body: bytes
    age: float
    from_local_cache: bool
    if_error: bool


class Miss(msgspec.Struct, frozen=True):
    """No entry that can be served. `replaced_entry_created`: when the entry at the key was written, if there is one."""

    reason: MissReason
    replaced_entry_created: float | None = None


Lookup = Hit | Stale | Miss | Bypass
"""The result of looking up a request in the cache."""
