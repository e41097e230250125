"""The values that the gateway works with: cache policy, cache lookup, full response. See router.flow.gateway."""

from collections.abc import Mapping

import msgspec

from router.core.cache.policy import Freshness, RemoteContentPolicy
from router.core.cache.policy import StorePolicy as StorePolicy
from router.core.types import Entry


class TenantCachePolicy(msgspec.Struct, frozen=True):
    """`ttl` in seconds; `store_policy`: which of the tenant's responses are stored. See settings.Cache."""

    ttl: float
    store_policy: StorePolicy


class CachePolicy(msgspec.Struct, frozen=True):
    """`tenants` by name; `stale_if_error` in seconds. See settings.Cache."""

    tenants: Mapping[str, TenantCachePolicy]
    stale_if_error: float
    remote_content: RemoteContentPolicy


class FullResponse(msgspec.Struct, frozen=True):
    """A complete response: JSON, or all frames of a stream."""

    body: bytes
    stream: bool


class CacheLookup(msgspec.Struct, frozen=True):
    """The entry at a request's key, and whether it can be served.

    `body`: the response in the form that the request asks for; empty if `freshness` is UNUSABLE. `age` in seconds.
    """

    entry: Entry
    body: bytes
    age: float
    from_local_cache: bool
    freshness: Freshness
