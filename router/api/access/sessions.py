"""Sessions of the dashboard: a cookie in place of the admin key, valid at every worker and replica.

Theory of operation. A token is `BODY.SIGNATURE` in base64url. The body has the end of the session and the start of the
SHA-256 of the admin key's hash, which finds the key. The signature is an HMAC with a secret that all routers share
through Redis and with the key's hash, so it takes both to make one. No router keeps a list of sessions: a session ends
when its time is over, when its key leaves the configuration, or when the browser deletes the cookie.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Callable, Iterable
from typing import Final

SESSION_COOKIE: Final = "roundhouse_session"

SESSION_SECONDS: Final = 12 * 3600
"""How long a session lasts."""

_MAX_STEP: Final = 3600  # seconds by which the clock may step back without ending sessions
_BODY: Final = struct.Struct(">Q8s")  # the end in seconds since the epoch, the key's id
_SIGNATURE_SIZE: Final = hashlib.sha256().digest_size
_TOKEN_LENGTH: Final = -(-(_BODY.size + _SIGNATURE_SIZE) * 4 // 3)  # characters; 48 bytes need no padding


class Sessions:
    """Issues and checks tokens.

    - A token of another secret, of a key that is not configured, or with a changed byte is invalid; so is one whose
      time is over, or has more of it left than any session gets: it was issued while the clock was ahead.
    - Signatures are compared in constant time.
    """

    def __init__(self, key_hashes: Iterable[str], secret: Callable[[], bytes], clock: Callable[[], float]) -> None:
        """`key_hashes`: the admin keys', each as `sha256:…`. `clock`: seconds since the epoch, the same everywhere."""
        self._hashes = {_key_id(key_hash): key_hash for key_hash in key_hashes}
        self._secret = secret
        self._clock = clock

    def issue(self, key_hash: str) -> str:
        body = _BODY.pack(int(self._clock()) + SESSION_SECONDS, _key_id(key_hash))
        return base64.urlsafe_b64encode(body + self._sign(body, key_hash)).decode("ascii")

    def is_valid(self, token: str) -> bool:
        return self.find_key(token) is not None

    def find_key(self, token: str) -> str | None:
        """The hash of the key that the session began with, as `sha256:…`; None if the token is invalid."""
        # b64decode also accepts the two characters that its other alphabet has in place of - and _.
        if len(token) != _TOKEN_LENGTH or "+" in token or "/" in token:
            return None
        try:
            decoded = base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True)
        except (UnicodeEncodeError, binascii.Error):
            return None
        body, signature = decoded[: _BODY.size], decoded[_BODY.size :]
        ends_at, key_id = _BODY.unpack(body)
        key_hash = self._hashes.get(key_id)
        # The time of this look-up tells at most whether a key with this id is configured; its id is no secret.
        if key_hash is None or not hmac.compare_digest(signature, self._sign(body, key_hash)):
            return None
        return key_hash if 0 < ends_at - self._clock() <= SESSION_SECONDS + _MAX_STEP else None

    def _sign(self, body: bytes, key_hash: str) -> bytes:
        key = hmac.digest(self._secret(), b"roundhouse session " + key_hash.encode(), "sha256")
        return hmac.digest(key, body, "sha256")


def _key_id(key_hash: str) -> bytes:
    return hashlib.sha256(key_hash.encode()).digest()[:8]
