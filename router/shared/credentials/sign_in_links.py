"""Links that sign in to the dashboard once.

    rh:1:session:link:{id}     the SHA-256 of the link's token, and the hash of the admin key that asked for it

Theory of operation. A token is random. The start of its SHA-256 is the id under which the record is found, so neither
Redis nor a backup of it has anything to sign in with. The record expires by itself. Every worker and router can redeem
it, and DEL returns 1 to only one of them. While Redis cannot store a record, the process that makes the link
keeps it: sessions are valid in one process only then, too.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from router.core.cache.redis_keys import session_link_key
from router.net.redis.pipeline import RedisDownError, RedisPipeline

LINK_SECONDS: Final = 300
"""For how long a link can be used."""

_MAX_KEPT: Final = 64  # in the process; only holders of an admin key make them
_TOKEN_BYTES: Final = 32
_ID_DIGITS: Final = 16


class SignInLinks:
    """Makes tokens, and gives each one's admin key once.

    - A token that is wrong, was used, or is older than LINK_SECONDS gives None.
    - Of any number of attempts at the same time with the same token, one succeeds.
    - Digests are compared in constant time.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._kept: dict[str, tuple[float, bytes]] = {}  # by id: until when, and the record

    async def issue(self, pipeline: RedisPipeline, key_hash: str) -> str:
        """A new token for the admin key with this hash (`sha256:…`)."""
        token, link_id, record = _new_link(key_hash)
        if not await _store(pipeline, link_id, record):
            # Another token: Redis may have stored the first one without a reply, and one in two places works twice.
            token, link_id, record = _new_link(key_hash)
            self._keep(link_id, record)
        return token

    async def redeem(self, pipeline: RedisPipeline, token: str) -> str | None:
        """The hash of the admin key that asked for the link. Raises RedisDownError if that cannot be known now."""
        link_id, digest = _identify(token)
        record = self._take_kept(link_id) or await _take_stored(pipeline, link_id) or b""
        stored_digest, _, key_hash = record.partition(b" ")
        return key_hash.decode("ascii", "replace") if hmac.compare_digest(stored_digest, digest) else None

    def _keep(self, link_id: str, record: bytes) -> None:
        now = self._clock()
        valid = [(key, kept) for key, kept in self._kept.items() if kept[0] > now]
        self._kept = dict(valid[1 - _MAX_KEPT :])
        self._kept[link_id] = now + LINK_SECONDS, record

    def _take_kept(self, link_id: str) -> bytes | None:
        until, record = self._kept.pop(link_id, (0.0, b""))
        return record if until > self._clock() else None


async def _store(pipeline: RedisPipeline, link_id: str, record: bytes) -> bool:
    try:
        (reply,) = await pipeline.execute(("SET", session_link_key(link_id), record, "NX", "EX", LINK_SECONDS))
    except RedisDownError:
        return False
    return not isinstance(reply, Exception) and reply is not None


async def _take_stored(pipeline: RedisPipeline, link_id: str) -> bytes | None:
    """Raises RedisDownError."""
    key = session_link_key(link_id)
    # Not GETDEL: the router's user of Redis would need another right. Of two processes, DEL counts 1 for one.
    record, deleted = await pipeline.execute(("GET", key), ("DEL", key))
    if isinstance(deleted, Exception):  # the record is still there
        raise RedisDownError
    return record if deleted == 1 and isinstance(record, bytes) else None


def _new_link(key_hash: str) -> tuple[str, str, bytes]:
    """A token, its id and its record."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    link_id, digest = _identify(token)
    return token, link_id, digest + b" " + key_hash.encode("ascii")


def _identify(token: str) -> tuple[str, bytes]:
    """The id of a token's record, and its digest in hex."""
    digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
    return digest[:_ID_DIGITS], digest.encode("ascii")
