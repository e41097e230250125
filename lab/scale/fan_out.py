"""What router processes send to Redis and to engines without any request, and for each entry: plain arithmetic.

The intervals are the router's own constants, so a change there changes these figures.
"""

from typing import NamedTuple

from router.net.redis.liveness import PING_INTERVAL
from router.shared.engines.announcements import RENEWAL_INTERVAL

PROBE_INTERVAL = 2.0
"""Seconds between two rounds of an EngineProbe; a round is a request for the health and one for the metrics."""

PROBE_REQUESTS = 2
ANNOUNCEMENTS_INTERVAL = 2.0
"""Seconds between two reads of all announced engines, see router.flow.replicas.background."""

ANNOUNCED_BYTES = 400
"""About the bytes of an announced engine in the hash that every router process reads."""

NOTIFIED_BYTES = 80
"""About the bytes of a notification that the hash has changed, and of the field that a router process then reads."""


class Deployment(NamedTuple):
    """Router processes (workers count), engines, the launchers that announce them, and Redis primaries."""

    processes: int
    engines: int
    launchers: int
    shards: int


class FanOut(NamedTuple):
    """Per second, all processes together, except `probes_per_engine`, which is what one engine gets.

    `announcement_bytes`: what Redis sends for announcements, from one shard. `notified_reads`: reads of one field
    that renewals cause; the reads of all announcements are periodic.
    """

    probes_per_engine: float
    probes: float
    pings: float
    notified_reads: float
    announcement_bytes: float
    redis_connections: int
    pushes: float


def fan_out(deployment: Deployment, *, writes: float) -> FanOut:
    """`writes`: entries stored per second, by all processes."""
    processes, engines, launchers, shards = deployment
    probes_per_engine = processes * PROBE_REQUESTS / PROBE_INTERVAL
    notified_reads = processes * launchers / RENEWAL_INTERVAL
    return FanOut(
        probes_per_engine=probes_per_engine,
        probes=probes_per_engine * engines,
        pings=processes * shards / PING_INTERVAL,
        notified_reads=notified_reads,
        announcement_bytes=(
            processes / ANNOUNCEMENTS_INTERVAL * engines * ANNOUNCED_BYTES + notified_reads * NOTIFIED_BYTES
        ),
        redis_connections=2 * processes * shards,  # one for commands, one for notifications
        pushes=processes * writes,
    )
