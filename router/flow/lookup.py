"""What the gateway finds, what it gives, and the settings that it goes by; see router.flow.gateway."""

from collections.abc import Mapping

import msgspec

from router.core.cache.policy import Freshness, RemoteContentPolicy
from router.core.cache.policy import StorePolicy as StorePolicy
from router.core.types import Entry


class TenantCachePolicy(msgspec.Struct, frozen=True):
    """How long a tenant's answers live, in seconds, and which of them are stored; see settings.Cache."""

    ttl: float
    store_policy: StorePolicy


class CachePolicy(msgspec.Struct, frozen=True):
    """`stale_if_error` in seconds; see settings.Cache, for `remote` its `remote_content`."""

    tenants: Mapping[str, TenantCachePolicy]
    stale_if_error: float
    remote_content: RemoteContentPolicy


class FullResponse(msgspec.Struct, frozen=True):
    """An answer that is there: JSON, or a stream that was kept."""

    body: bytes
    stream: bool


class CacheLookup(msgspec.Struct, frozen=True):
    """What is stored where this request's answer would be, and what it is good for.

    `body`: the answer in the form that the request asks for; nothing where it is of no use.
    """

    entry: Entry
    body: bytes
    age: float
    from_local_cache: bool
    freshness: Freshness
