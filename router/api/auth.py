"""Who asks: from a request's headers to the tenant it belongs to.

Theory. A key is found by its SHA-256 in a dict, so that ten thousand keys cost no more than one. How long that takes
says nothing of use: whoever sends keys cannot choose their digests, a digest is compared with another only where both
have the same hash in the dict, which is keyed anew in each process, and a digest that somebody learned would still be
no key. What is found is then compared in constant time, so that no answer depends on a comparison that stops early.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from router.core.types import DEFAULT_TENANT
from router.errors import AUTHENTICATION, PERMISSION, ApiError

Headers = Iterable[tuple[bytes, bytes]]

AuthMode = Literal["open", "keys", "header"]

HASH_PREFIX: Final = "sha256:"
"""What stands before the hex SHA-256 of a key in the configuration."""


def hash_key(key: bytes) -> str:
    """How a key is written in the configuration."""
    return HASH_PREFIX + hashlib.sha256(key).hexdigest()


class Authenticator:
    """Finds the tenant of a request.

    - `open`: everybody is the tenant `default`.
    - `keys`: whoever has a tenant's key, as `Authorization: Bearer`, or as `x-api-key` where that is taken (on
      /v1/messages, since Anthropic's clients send it so). Keys are known by their SHA-256 alone; two keys are none.
    - `header`: whom `X-Tenant-ID` names, for routers that only a trusted proxy can reach.
    - In the last two, a request without a known identity raises ApiError (401), and nothing is looked up for it.
    - In no other mode than `header` is X-Tenant-ID looked at.
    """

    def __init__(self, mode: AuthMode, keys: Mapping[str, str], tenants: Iterable[str]) -> None:
        """`keys`: from `sha256:…` to the tenant whose key it is; `tenants`: all names there are."""
        self._mode = mode
        self._keys = dict(keys)
        self._digests = _index_digests(keys)
        self._tenants = frozenset(tenants)

    def authenticate(self, headers: Headers, *, allow_x_api_key: bool = False) -> str:
        """The tenant's name; `x_api_key` takes the key from that header too. Raises ApiError."""
        if self._mode == "open":
            return DEFAULT_TENANT
        if self._mode == "header":
            name = _single_header(headers, b"x-tenant-id").decode("latin-1")
            if name in self._tenants:
                return name
            raise _unauthorized("X-Tenant-ID must name a tenant of this router.")
        found = _find_digest(_extract_key(headers, allow_x_api_key=allow_x_api_key), self._digests)
        if found is None:
            raise _unauthorized("The API key is not known here.")
        return self._keys[found]


class AdminAuthenticator:
    """Lets in whoever has one of the administrators' keys, as `Authorization: Bearer`.

    - Where the configuration has none, nobody comes in: ApiError (403), whatever they send.
    - Without one of them: ApiError (401).
    """

    def __init__(self, keys: Iterable[str]) -> None:
        """`keys`: each as `sha256:…`."""
        self._digests = _index_digests(keys)

    def check(self, headers: Headers) -> None:
        """Raises ApiError."""
        if not self._digests:
            # Not 404: that a page is there is no secret, and whoever set the router up should learn what is missing.
            message = "The admin API is closed: the configuration has no auth.admin_keys."
            raise ApiError(403, message, kind=PERMISSION, code="admin_closed")
        if _find_digest(_extract_key(headers, allow_x_api_key=False), self._digests) is None:
            raise _unauthorized("The admin key is not known here.")


def _index_digests(digests: Iterable[str]) -> dict[str, str]:
    return {digest: digest for digest in digests}


def _find_digest(key: bytes, digests: Mapping[str, str]) -> str | None:
    """Which of the digests, each of which stands under itself, is that of the key."""
    given = hash_key(key)
    known = digests.get(given)
    return known if known is not None and hmac.compare_digest(known, given) else None


def _extract_key(headers: Headers, *, allow_x_api_key: bool) -> bytes:
    """The one key that was sent. Raises ApiError."""
    scheme, _, bearer = _single_header(headers, b"authorization").partition(b" ")
    keys = {bearer.strip()} if scheme.lower() == b"bearer" else set()
    if allow_x_api_key:
        keys.add(_single_header(headers, b"x-api-key").strip())
    keys.discard(b"")
    if len(keys) != 1:
        also = " or `x-api-key: KEY`" if allow_x_api_key else ""
        raise _unauthorized(f"An API key is needed, as `Authorization: Bearer KEY`{also}.")
    return keys.pop()


def _single_header(headers: Headers, header_name: bytes) -> bytes:
    """A header's value if it was sent exactly once; two identities are none."""
    values = [value for name, value in headers if name == header_name]
    return values[0] if len(values) == 1 else b""


def _unauthorized(message: str) -> ApiError:
    return ApiError(401, message, kind=AUTHENTICATION, code="invalid_api_key")
