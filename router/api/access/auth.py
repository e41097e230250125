"""Authentication: from a request's headers to the tenant that sent it.

Theory. A key is looked up by its SHA-256 in a dict, so ten thousand keys cost no more than one. The time of the look-up
reveals nothing useful: a client cannot choose the digests of the keys that it sends, the dict compares two digests only
if their hashes match (the hash is seeded in each process), and a leaked digest is not a key. The digest in the dict is
then compared in constant time, so that no response depends on a comparison that stops early.
"""

import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal

from router.core.api_keys import KeyRecord, key_id
from router.core.api_keys import hash_key as hash_key
from router.core.types import DEFAULT_TENANT, Identity
from router.errors import AUTHENTICATION, PERMISSION, UNAVAILABLE, ApiError

Headers = Iterable[tuple[bytes, bytes]]

AuthMode = Literal["open", "keys", "header"]

log = logging.getLogger("roundhouse.keys")

MODE_UNSET: Final = (
    'auth.mode is not set, and the configuration has no keys, but Redis has: the operator must set it to "keys" or '
    '"open".'
)
KEYS_UNKNOWN: Final = "The keys in Redis are not known yet: Redis does not answer."


class _TenantKey:
    """A tenant's key. `expires`: seconds since the epoch, None for never. `used`: since the last `take_used`."""

    def __init__(self, digest: str, tenant: str, expires: float | None) -> None:
        self.digest = digest
        self.identity = Identity(tenant, key_id(digest))  # made here and not for each request
        self.expires = expires
        self.used = False


class Authenticator:
    """Identifies the tenant of a request.

    - `open`: every request belongs to the tenant `default`.
    - `keys`: the tenant whose key is in `Authorization: Bearer`, or in `x-api-key` where that is allowed (on
      /v1/messages, because Anthropic's clients use it). Only the SHA-256 of keys is known here. A request with two
      different keys has none. The keys are those of the configuration and, once `set_stored_keys` was called, those in
      Redis that belong to a configured tenant. Until then, an unknown key may be one of those: ApiError (503).
    - `header`: the tenant that `X-Tenant-ID` names, for routers that only a trusted proxy can reach.
    - In the last two, a request without a known identity raises ApiError (401), before anything is looked up for it.
    - X-Tenant-ID is ignored in every mode but `header`.
    - If `open` follows from the configuration's lack of keys (`guarded`), and Redis has keys, every request is refused:
      ApiError (503). So a key that moves to Redis never opens the router.
    """

    def __init__(
        self,
        mode: AuthMode,
        keys: Mapping[str, str],
        tenants: Iterable[str],
        *,
        guarded: bool = False,
        has_stored_keys: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`keys`: from `sha256:…` to the key's tenant; `tenants`: all tenant names.

        `has_stored_keys`: whether `set_stored_keys` will be called. `clock`: seconds since the epoch, by Redis' clock.
        """
        self._mode = mode
        self._clock = clock
        self._default = Identity(DEFAULT_TENANT, None)
        self._tenants = {name: Identity(name, None) for name in tenants}
        self._configured = {digest: _TenantKey(digest, tenant, None) for digest, tenant in keys.items()}
        self._keys = self._configured
        self._waits_for_stored_keys = has_stored_keys
        self._guarded = guarded = guarded and mode == "open"  # in other modes, nobody is let in unasked
        self._reported = False
        # Tenants without keys: perhaps theirs are in Redis.
        self._is_closed = guarded and has_stored_keys and any(name != DEFAULT_TENANT for name in self._tenants)

    def set_stored_keys(self, records: Iterable[KeyRecord]) -> None:
        """All keys that Redis has, revoked and expired ones included."""
        valid = [record for record in records if record.revoked is None and record.tenant in self._tenants]
        stored = {
            record.hash: self._keys.get(record.hash) or _TenantKey(record.hash, record.tenant, record.expires)
            for record in valid
        }
        self._keys = stored | self._configured
        self._waits_for_stored_keys = False
        self._is_closed = self._guarded and any(True for _ in records)
        if self._is_closed and not self._reported:
            log.error("every request is refused (503 auth_mode_unset): %s", MODE_UNSET)
        self._reported = self._is_closed

    @property
    def refuses_all(self) -> str | None:
        """Why every request is refused, whatever its key; None if some are not."""
        if self._is_closed:
            return KEYS_UNKNOWN if self._waits_for_stored_keys else MODE_UNSET
        return KEYS_UNKNOWN if self._mode == "keys" and self._waits_for_stored_keys and not self._keys else None

    def take_used(self) -> list[str]:
        """The ids of the keys that were used since the last call."""
        used = [key for key in self._keys.values() if key.used]
        for key in used:
            key.used = False
        return [key_id(key.digest) for key in used]

    def authenticate(self, headers: Headers, *, allow_x_api_key: bool = False) -> Identity:
        """`allow_x_api_key`: the key may be in `x-api-key`. Raises ApiError."""
        if self._mode == "open":
            if self._is_closed:
                raise self._closed()
            return self._default
        if self._mode == "header":
            identity = self._tenants.get(_single_header(headers, b"x-tenant-id").decode("latin-1"))
            if identity is not None:
                return identity
            raise invalid_key("X-Tenant-ID must name a configured tenant.")
        digest = hash_key(_extract_key(headers, allow_x_api_key=allow_x_api_key))
        key = self._keys.get(digest)
        # The dict has compared them already, but byte by byte, so its time depends on them.
        if key is None or not hmac.compare_digest(key.digest, digest):
            raise _keys_unknown() if self._waits_for_stored_keys else invalid_key("The API key is not valid.")
        if key.expires is not None and self._clock() >= key.expires:
            raise invalid_key("The API key has expired.")
        key.used = True
        return key.identity

    def _closed(self) -> ApiError:
        if self._waits_for_stored_keys:
            return _keys_unknown()
        return ApiError(503, MODE_UNSET, kind=UNAVAILABLE, code="auth_mode_unset", retry_after=60)


class AdminAuthenticator:
    """Checks for an administrator's key in `Authorization: Bearer`.

    - If the configuration has no such key, every request is refused: ApiError (403).
    - A request without a valid key: ApiError (401).
    """

    def __init__(self, keys: Iterable[str], record_use: Callable[[str], None] = lambda _: None) -> None:
        """`keys`: each as `sha256:…`. `record_use` is called with the id of each key that is used."""
        self._digests = {digest: digest for digest in keys}
        self._record_use = record_use

    @property
    def has_keys(self) -> bool:
        return bool(self._digests)

    def find(self, key: bytes) -> str | None:
        """The key's hash, as `sha256:…`; None if the key is not valid."""
        digest = hash_key(key)
        known = self._digests.get(digest)
        if known is None or not hmac.compare_digest(known, digest):
            return None
        self._record_use(key_id(known))
        return known

    def is_admin(self, headers: Headers) -> bool:
        """As `check`, for requests that need no admin key."""
        key = _bearer_key(headers) if self._digests else b""
        return key != b"" and self.find(key) is not None

    def knows(self, key_hash: str) -> bool:
        """Whether a key with this hash is configured."""
        return key_hash in self._digests

    def check(self, headers: Headers) -> str:
        """The key's hash, as `sha256:…`. Raises ApiError."""
        if not self._digests:
            # Not 404: the existence of the admin API is no secret, and its operator should learn what is missing.
            message = "The admin API is disabled: the configuration has no auth.admin_keys."
            raise ApiError(403, message, kind=PERMISSION, code="admin_closed")
        found = self.find(_extract_key(headers, allow_x_api_key=False))
        if found is None:
            raise invalid_key("The admin key is not valid.")
        return found


def _bearer_key(headers: Headers) -> bytes:
    """Empty if there is none."""
    scheme, _, bearer = _single_header(headers, b"authorization").partition(b" ")
    return bearer.strip() if scheme.lower() == b"bearer" else b""


def _extract_key(headers: Headers, *, allow_x_api_key: bool) -> bytes:
    """The one key of the request. Raises ApiError."""
    keys = {_bearer_key(headers)}  # a set, since a client may send the same key in both headers
    if allow_x_api_key:
        keys.add(_single_header(headers, b"x-api-key").strip())
    keys.discard(b"")
    if len(keys) != 1:
        also = " or `x-api-key: KEY`" if allow_x_api_key else ""
        raise invalid_key(f"An API key is required, as `Authorization: Bearer KEY`{also}.")
    return keys.pop()


def _single_header(headers: Headers, header_name: bytes) -> bytes:
    """A header's value if it was sent exactly once, else empty: which of two identities counts would be a guess."""
    values = [value for name, value in headers if name == header_name]
    return values[0] if len(values) == 1 else b""


def invalid_key(message: str) -> ApiError:
    """Status 401."""
    return ApiError(401, message, kind=AUTHENTICATION, code="invalid_api_key")


def _keys_unknown() -> ApiError:
    return ApiError(503, KEYS_UNKNOWN, kind=UNAVAILABLE, code="keys_unknown", retry_after=1)
