"""Leases on generations, and their streams: how router processes share in-flight requests through Redis.

Theory of operation. A claim is a string in Redis beside the key of the future entry. It names the process that
generates the entry, the id of its in-flight request, and the purge position that the process knew when the generation
began. A claim expires unless it is renewed, so a killed process is detected within seconds. A process that finds
another process' claim publishes the id on that leader's channel. Only then does the leader begin a stream
(router.shared.inflight.stream_writer): it writes a first record at once, as the acknowledgement, with all frames so
far, and then the frames that follow. So a generation without a remote follower costs one claim and nothing more. How a
follower reads the stream, and when it considers the leader lost, is in router.shared.inflight.stream_reader. A follower
that has received nothing yet takes over the claim of a lost leader, and leads.

The id of an in-flight request is a random prefix per process and Redis, and a number. No other process or restart can
have the same id, so no stream or claim is mistaken for another generation's.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable
from typing import Final, Literal

from router.core.cache.redis_keys import flight_key
from router.net.redis.pipeline import RedisPipeline
from router.shared.cache.purges import PurgePosition
from router.shared.inflight.claim import LEASE_DURATION, Claim, process_channel
from router.shared.inflight.claims import Claims
from router.shared.inflight.stream_reader import StreamSource, flight_source, follow
from router.shared.inflight.stream_writer import Producer, RedisStreamWriter, StreamRecord

_RENEW_INTERVAL: Final = LEASE_DURATION / 3  # so that a claim survives one renewal that fails


class InFlightLeases:
    """The claims and streams of one process.

    - An in-flight request is written to its stream only if it has a remote follower. If its stream can no longer be
      written, its claim is released.
    """

    def __init__(self, pipeline: RedisPipeline, *, on_remote_subscriber: Callable[[str], None]) -> None:
        """`on_remote_subscriber` is called with the id of an in-flight request, once a second per remote follower.

        Or with another message to this process; see BackgroundRuns.
        """
        self.process_id = secrets.token_hex(6)
        self.claims = Claims(pipeline, self.process_id)
        self._pipeline = pipeline
        self._on_remote_subscriber = on_remote_subscriber
        self._writers: dict[str, RedisStreamWriter] = {}
        self._stream_events: dict[str, asyncio.Event] = {}  # of the streams that are followed

    @property
    def channel(self) -> str:
        """The channel on which followers publish the ids of in-flight requests of this process."""
        return process_channel(self.process_id)

    @property
    def is_writing(self) -> bool:
        """Whether Redis does not have all records of the streams yet."""
        return bool(self._writers)

    # -- leading ----------------------------------------------------------------------------------------------------

    async def take_over(
        self, key: str, lost: Claim, flight_id: str, purge_position: PurgePosition,
        replaced_entry_created: float | None = None,
    ) -> Claim | Literal["stored"] | None:  # fmt: skip
        """See Claims."""
        return await self.claims.take_over(key, lost, flight_id, purge_position, replaced_entry_created)

    async def run(self) -> None:
        """Renews the claims and writes the heartbeats of the streams, until it is cancelled."""
        while True:
            await asyncio.sleep(_RENEW_INTERVAL)
            for writer in list(self._writers.values()):
                writer.heartbeat()
            await self.claims.renew()

    def publish(self, key: str, flight_id: str, producer: Producer, frames: bytes) -> None:
        """Appends frames to the stream. The first call must have all frames of the in-flight request so far."""
        self._writer(key, flight_id).publish(producer, frames)

    def finish(self, key: str, flight_id: str, producer: Producer, outcome: bytes) -> None:
        """Appends the encoded outcome, the last record of the stream."""
        writer = self._writer(key, flight_id)
        writer.publish(producer, b"", outcome)
        if writer.failed:
            self._writers.pop(flight_id, None)

    def _writer(self, key: str, flight_id: str) -> RedisStreamWriter:
        writer = self._writers.get(flight_id)
        if writer is None:
            writer = RedisStreamWriter(
                self._pipeline, flight_key(key, flight_id), lambda done: self._on_writer_done(flight_id, done)
            )
            self._writers[flight_id] = writer
        return writer

    def _on_writer_done(self, flight_id: str, writer: RedisStreamWriter) -> None:
        if writer.failed:
            self.claims.release(flight_id)  # other processes would wait for a stream that nobody writes
        if writer.finished:  # not finished: the failed writer stays, so that the next frames start no second stream
            self._writers.pop(flight_id, None)

    def stop(self) -> None:
        for writer in self._writers.values():
            writer.stop()
        self._writers.clear()

    def follow(self, key: str, claim: Claim) -> AsyncGenerator[StreamRecord, None]:
        """The records of another process' in-flight request; see `follow_source`."""
        return self.follow_source(flight_source(key, claim))

    async def follow_source(self, source: StreamSource) -> AsyncGenerator[StreamRecord, None]:
        """The records of a stream, up to its outcome; see stream_reader. Raises LeaderLostError."""
        stream = source.stream
        stream_changed = self._stream_events[stream] = asyncio.Event()
        try:
            async with contextlib.aclosing(follow(self._pipeline, source, stream_changed)) as records:
                async for record in records:
                    yield record
        finally:
            if self._stream_events.get(stream) is stream_changed:  # not if another `follow` has replaced it
                del self._stream_events[stream]

    # -- Redis' pushes ----------------------------------------------------------------------------------------------

    def on_stream_changed(self, stream: str) -> None:
        event = self._stream_events.get(stream)
        if event is not None:
            event.set()

    def on_message(self, payload: bytes) -> None:
        """A message has arrived on this process' channel: the id of an in-flight request."""
        self._on_remote_subscriber(payload.decode("ascii", "replace"))
