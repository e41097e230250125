"""Redis as the link between the processes' prompt records."""

import contextlib

from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.prompts.prompt_records import PROMPTS_CHANNEL


class RedisRecordLink:
    """Publishes messages on PROMPTS_CHANNEL; see RecordLink.

    - `listening`: whether the listener gets those of others.
    """

    def __init__(self, pipeline: RedisPipeline) -> None:
        self.listening = False
        self._pipeline = pipeline

    @property
    def up(self) -> bool:
        return self.listening and self._pipeline.up

    def publish(self, message: bytes) -> None:
        with contextlib.suppress(RedisDownError):  # records may be lost
            self._pipeline.send(("PUBLISH", PROMPTS_CHANNEL, message))
