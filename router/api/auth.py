"""Authentication: from a request's headers to the tenant that sent it.

Theory. A key is looked up by its SHA-256 in a dict, so ten thousand keys cost no more than one. The time of the look-up
reveals nothing useful: a client cannot choose the digests of the keys that it sends, the dict compares two digests only
if their hashes match (the hash is seeded in each process), and a leaked digest is not a key. The digest in the dict is
then compared in constant time, so that no response depends on a comparison that stops early.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from router.core.types import DEFAULT_TENANT, Identity
from router.errors import AUTHENTICATION, PERMISSION, ApiError

Headers = Iterable[tuple[bytes, bytes]]

AuthMode = Literal["open", "keys", "header"]

HASH_PREFIX: Final = "sha256:"
"""The prefix of a key's hex SHA-256 in the configuration."""


_KEY_ID_DIGITS: Final = 8


def hash_key(key: bytes) -> str:
    return HASH_PREFIX + hashlib.sha256(key).hexdigest()


def key_id(digest: str) -> str:
    """A short name of a key for logs and people: the first digits of its digest, which `hash_key` returns."""
    return digest.removeprefix(HASH_PREFIX)[:_KEY_ID_DIGITS]


class Authenticator:
    """Identifies the tenant of a request.

    - `open`: every request belongs to the tenant `default`.
    - `keys`: the tenant whose key is in `Authorization: Bearer`, or in `x-api-key` where that is allowed (on
      /v1/messages, because Anthropic's clients use it). Only the SHA-256 of keys is known here. A request with two
      different keys has none.
    - `header`: the tenant that `X-Tenant-ID` names, for routers that only a trusted proxy can reach.
    - In the last two, a request without a known identity raises ApiError (401), before anything is looked up for it.
    - X-Tenant-ID is ignored in every mode but `header`.
    """

    def __init__(self, mode: AuthMode, keys: Mapping[str, str], tenants: Iterable[str]) -> None:
        """`keys`: from `sha256:…` to the key's tenant; `tenants`: all tenant names."""
        self._mode = mode
        self._default = Identity(DEFAULT_TENANT, None)
        # They are made here and not for each request.
        self._keys = {digest: Identity(tenant, key_id(digest)) for digest, tenant in keys.items()}
        self._digests = _index_digests(keys)
        self._tenants = {name: Identity(name, None) for name in tenants}

    def authenticate(self, headers: Headers, *, allow_x_api_key: bool = False) -> Identity:
        """`allow_x_api_key`: the key may be in `x-api-key`. Raises ApiError."""
        if self._mode == "open":
            return self._default
        if self._mode == "header":
            identity = self._tenants.get(_single_header(headers, b"x-tenant-id").decode("latin-1"))
            if identity is not None:
                return identity
            raise invalid_key("X-Tenant-ID must name a configured tenant.")
        digest = _find_digest(_extract_key(headers, allow_x_api_key=allow_x_api_key), self._digests)
        if digest is None:
            raise invalid_key("The API key is not valid.")
        return self._keys[digest]


class AdminAuthenticator:
    """Checks for an administrator's key in `Authorization: Bearer`.

    - If the configuration has no such key, every request is refused: ApiError (403).
    - A request without a valid key: ApiError (401).
    """

    def __init__(self, keys: Iterable[str]) -> None:
        """`keys`: each as `sha256:…`."""
        self._digests = _index_digests(keys)

    @property
    def has_keys(self) -> bool:
        return bool(self._digests)

    def find(self, key: bytes) -> str | None:
        """The key's hash, as `sha256:…`; None if the key is not valid."""
        return _find_digest(key, self._digests)

    def check(self, headers: Headers) -> None:
        """Raises ApiError."""
        if not self._digests:
            # Not 404: the existence of the admin API is no secret, and its operator should learn what is missing.
            message = "The admin API is disabled: the configuration has no auth.admin_keys."
            raise ApiError(403, message, kind=PERMISSION, code="admin_closed")
        if _find_digest(_extract_key(headers, allow_x_api_key=False), self._digests) is None:
            raise invalid_key("The admin key is not valid.")


def _index_digests(digests: Iterable[str]) -> dict[str, str]:
    return {digest: digest for digest in digests}


def _find_digest(key: bytes, digests: Mapping[str, str]) -> str | None:
    """The digest of the key, if it is among `digests`, which maps each digest to itself."""
    digest = hash_key(key)
    known = digests.get(digest)
    # The dict has compared them already, but byte by byte, so its time depends on them.
    return known if known is not None and hmac.compare_digest(known, digest) else None


def _extract_key(headers: Headers, *, allow_x_api_key: bool) -> bytes:
    """The one key of the request. Raises ApiError."""
    scheme, _, bearer = _single_header(headers, b"authorization").partition(b" ")
    # A set, since a client may send the same key in both headers.
    keys = {bearer.strip()} if scheme.lower() == b"bearer" else set()
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
