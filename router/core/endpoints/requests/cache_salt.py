"""Isolates tenants in the prefix caches of engines, with the `cache_salt` of vLLM's requests.

Theory. vLLM skips the computation for a prefix that a prompt shares with an earlier one, in blocks of 16 tokens, so the
first token comes sooner. By measuring this time, a tenant could find out what others have sent. A salt is part of the
hash of a prompt's first block, and through it of all blocks, so prompts with different salts share no blocks. A request
gets the salt of its tenant, or of a group of tenants that share prefixes; a client's own salt only divides this
further. All requests of tenants pass through routers, which hash a client's salt together with the tenant's, so no
tenant can use another's salt. Salts are derived from names, so all routers have the same ones.

Source: https://docs.vllm.ai/en/latest/design/prefix_caching.html, "Cache Isolation for Security". vLLM 0.32 accepts the
field at all five endpoints. It limits the characters and the length (128), so the salts are in hex.
"""

import hashlib
from collections.abc import Mapping

from router.errors import bad_request


def derive_salts(groups: Mapping[str, str | None]) -> dict[str, str]:
    """The salt of each tenant; empty if all tenants share prefixes, since nothing needs isolation then.

    `groups`: by tenant, the group with which it shares prefixes, if any. Must have all tenants that requests can have.
    """
    names = {tenant: sharing_group_name(tenant, group) for tenant, group in groups.items()}
    if len(set(names.values())) < 2:
        return {}
    return {tenant: _hash("roundhouse cache_salt 1", name) for tenant, name in names.items()}


def sharing_group_name(tenant: str, group: str | None) -> str:
    """A name for the tenants that share prefixes with this one; for a tenant without a group, its own name."""
    return tenant if group is None else f"group:{group}"  # names of tenants have no colon, so this cannot be one


def combine_salts(salt: str, client_salt: object) -> str:
    """The salt of a request with `client_salt` in its body. Raises ApiError for a value that vLLM would refuse too."""
    if client_salt is None:
        return salt
    if not isinstance(client_salt, str) or not client_salt:
        raise bad_request("`cache_salt` must be a non-empty string.", param="cache_salt")
    return _hash(salt, client_salt)


def _hash(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:%b" % (len(data), data))  # with the length, ("a", "bc") and ("ab", "c") differ
    return digest.hexdigest()[:32]
