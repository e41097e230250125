"""What the gateway finds, what it gives, and the settings that it goes by; see router.flow.gateway."""

from collections.abc import Mapping

import msgspec

from router.core.cache.policy import Remote, Use
from router.core.cache.policy import Store as StorePolicy
from router.core.types import Entry


class TenantCache(msgspec.Struct, frozen=True):
    """How long a tenant's answers live, in seconds, and which of them are stored; see settings.Cache."""

    ttl: float
    store: StorePolicy


class CacheSettings(msgspec.Struct, frozen=True):
    """`stale_if_error` in seconds; see settings.Cache, for `remote` its `remote_content`."""

    tenants: Mapping[str, TenantCache]
    stale_if_error: float
    remote: Remote


class Whole(msgspec.Struct, frozen=True):
    """An answer that is there: JSON, or a stream that was kept."""

    body: bytes
    stream: bool


class Found(msgspec.Struct, frozen=True):
    """What is stored where this request's answer would be, and what it is good for.

    `body`: the answer in the form that the request asks for; nothing where it is of no use.
    """

    entry: Entry
    body: bytes
    age: float
    local: bool
    use: Use
