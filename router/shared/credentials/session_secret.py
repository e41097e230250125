"""The secret with which all routers sign the session cookies of the dashboard.

    rh:1:session:secret     random bytes, which the first router writes

It is not derived from the configuration alone: that has only the hashes of admin keys, and must not be enough to forge
a session. A process without Redis uses a secret of its own, so its sessions are valid there only.
"""

import contextlib
import logging
import secrets
from collections.abc import Callable
from typing import Final

from router.core.cache.redis_keys import SESSION_SECRET_KEY
from router.net.redis.pipeline import RedisDownError, RedisPipeline

log = logging.getLogger("roundhouse.admin")

_SIZE: Final = 32  # bytes
_MIN_INTERVAL: Final = 1.0  # seconds between two reads, since any invalid cookie causes one


class SessionSecret:
    """`value` is random until `refresh` has found, or written, the one in Redis."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self.value = secrets.token_bytes(_SIZE)
        self._clock = clock
        self._read_at = float("-inf")

    async def refresh(self, pipeline: RedisPipeline) -> None:
        """Takes over the secret in Redis, or writes the own one if there is none. While Redis is down, does nothing."""
        now = self._clock()
        if now - self._read_at < _MIN_INTERVAL:
            return
        with contextlib.suppress(RedisDownError):
            set_own, get = ("SET", SESSION_SECRET_KEY, self.value, "NX"), ("GET", SESSION_SECRET_KEY)
            _, stored = await pipeline.execute(set_own, get)
            self._read_at = now
            if isinstance(stored, bytes) and len(stored) == _SIZE:
                self.value = stored
            else:  # an error, or a value of another size
                log.warning("cannot share the secret of the dashboard's sessions; each is valid at one process only")
