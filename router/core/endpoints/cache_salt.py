"""What keeps the prefix caches of engines apart between tenants: the `cache_salt` of vLLM's requests.

Theory. vLLM skips what a prompt shares with an earlier one, 16 tokens at a time, and so answers sooner: by that time a
tenant could find out what others have asked. A salt is part of the hash of a prompt's first block, and through it of
all blocks, so prompts with different salts share none. A request gets the salt of its tenant, or of the group of
tenants that share; a client's own salt only divides that further. As all requests of tenants come through routers, no
tenant can have another's salt: what it sends is hashed together with its own. Salts follow from names, so all routers
agree on them.

Source: https://docs.vllm.ai/en/latest/design/prefix_caching.html, "Cache Isolation for Security". vLLM 0.32 takes it at
all five endpoints; its characters and its length (at most 128) are limited, so that this one is hex.
"""

import hashlib
from collections.abc import Mapping

from router.errors import bad_request


def derive_salts(groups: Mapping[str, str | None]) -> dict[str, str]:
    """The salt of each tenant; none at all where there is nobody to keep apart.

    `groups`: for each tenant that requests can belong to, the group that it shares with, if any.
    """
    names = {tenant: sharing_group_name(tenant, group) for tenant, group in groups.items()}
    if len(set(names.values())) < 2:
        return {}
    return {tenant: _hash("roundhouse cache_salt 1", name) for tenant, name in names.items()}


def sharing_group_name(tenant: str, group: str | None) -> str:
    """The name of those who share prefixes: the tenant, or its group. No tenant can be named as a group is here."""
    return tenant if group is None else f"group:{group}"


def combine_salts(salt: str, client_salt: object) -> str:
    """The salt of a request whose client sent the salt `own`, or None. Raises ApiError for what vLLM refuses too."""
    if client_salt is None:
        return salt
    if not isinstance(client_salt, str) or not client_salt:
        raise bad_request("`cache_salt` must be a non-empty string.", param="cache_salt")
    return _hash(salt, client_salt)


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:%b" % (len(data), data))
    return digest.hexdigest()[:32]
