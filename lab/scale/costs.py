"""The costs that drive the simulation: CPU seconds of a router process and of Redis for each step of a request."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

MEASURED: Final = Path(__file__).parent / "measured_costs.json"
"""What lab/scale_costs.py wrote."""

_US: Final = 1e-6


class Costs(NamedTuple):
    """CPU seconds. Those of a miss, and of a follower, are of a stream; `event` is for each of its events.

    - `hit_local`, `hit_redis`: a router, for a hit from its memory or from Redis.
    - `stream`, `event`: a router, for a miss, without events and for each event.
    - `follower_event`: a router, for each event that it gives to a further client.
    - `remote_event`: a router that leads and one that follows together, for each event, beyond a local follower.
    - `redis_lookup`, `redis_claim`, `redis_store`: Redis, for the parts of a miss; a hit takes one lookup.
    - `redis_remote_event`: Redis, for each event that a router follows at another one.
    - `invalidation`: each router process, for an entry that any process stores.
    - `redis_invalidation`: Redis, for an entry, for each router process that listens.
    - `rank_engine`: a router, for a generation, for each engine that it chooses among.
    - `idle`, `idle_engine`: a router process per second, and for each engine; `redis_idle`: Redis, for each process.
    """

    hit_local: float
    hit_redis: float
    stream: float
    event: float
    follower_event: float
    remote_event: float
    redis_lookup: float
    redis_claim: float
    redis_store: float
    redis_remote_event: float
    invalidation: float
    redis_invalidation: float
    idle: float
    idle_engine: float
    redis_idle: float
    rank_engine: float

    @classmethod
    def from_measured(cls, measured: Any) -> Self:
        """`measured`: the JSON of lab/scale_costs.py."""
        paths, paced, pair = measured["paths"], measured["paced_stream"], measured["remote_pair"]
        events = measured["local_follower"]["events"]
        follower_event = measured["local_follower"]["router_us"] / events
        miss_redis = paths["miss_stream_66_unpaced"]["redis_us"]
        lookup = paths["hit_stream_redis"]["redis_us"]
        # The rest of a miss: the claim with its second lookup, and the entry with the release of the claim.
        rest = max(0.0, miss_redis - lookup)
        one_stream = paced["stream_us"] + events * paced["event_us"]
        remote = max(0.0, pair["routers_us"] - one_stream - measured["local_follower"]["router_us"])
        idle = measured["idle"]
        return cls(
            hit_local=paths["hit_stream_local"]["router_us"] * _US,
            hit_redis=paths["hit_stream_redis"]["router_us"] * _US,
            stream=max(0.0, paced["stream_us"]) * _US,
            event=paced["event_us"] * _US,
            follower_event=follower_event * _US,
            remote_event=remote / events * _US,
            redis_lookup=lookup * _US,
            redis_claim=rest * 0.4 * _US,
            redis_store=rest * 0.6 * _US,
            redis_remote_event=max(0.0, pair["redis_us"] - miss_redis) / events * _US,
            invalidation=max(0.0, measured["invalidation"]["router_us"]) * _US,
            redis_invalidation=max(0.0, measured["invalidation"]["redis_us"]) * _US,
            idle=idle["router_us_per_s"] * _US,
            idle_engine=idle["router_us_per_s_per_engine"] * _US,
            redis_idle=max(0.0, idle["redis_us_per_s"]) * _US,
            rank_engine=measured["ranking"]["us_per_engine"] * _US,
        )


def load_costs(path: Path = MEASURED) -> Costs:
    return Costs.from_measured(json.loads(path.read_text()))
