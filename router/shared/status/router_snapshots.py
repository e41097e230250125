"""What each router process sees, shared through Redis while someone watches.

    rh:1:watched              exists while someone watches; who does renews it
    rh:1:router:snapshots     a hash: a process' id -> its RouterSnapshot as JSON

Theory of operation. A process looks every second whether someone watches, and only then publishes. A snapshot that is
not renewed for LIFETIME seconds is ignored, so a dead or frozen process vanishes. Times are those of Redis' clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import asdict, replace

from router.core.cache.redis_keys import SNAPSHOTS_KEY, WATCHED_KEY
from router.net.redis.commands import Command
from router.net.redis.replies import hash_fields
from router.shared.status.status_documents import BreakerStateName, EngineRow, EngineState, ModelRow, RouterRow

LIFETIME: Final = 15
"""Seconds for which a snapshot, or a viewer's mark, counts."""

MAX_SNAPSHOTS: Final = 1000
"""Router processes that are read; further ones are ignored."""

MAX_SNAPSHOT: Final = 96 << 10
"""Bytes of one snapshot; one with more is published without some of its engines."""

_RETENTION: Final = 60  # seconds after which a snapshot that is not renewed is deleted


class PackedEngine(EngineRow, array_like=True, frozen=True, kw_only=True):
    """An engine without the names of its fields, so that the snapshot of a router with 256 engines is small enough."""


class RouterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What one process sees. `router.seen` has no meaning here."""

    published_at: float
    router: RouterRow
    engines: tuple[PackedEngine, ...] = ()
    models: tuple[ModelRow, ...] = ()


_decoder: Final = msgspec.json.Decoder(RouterSnapshot)


def watch_command() -> Command:
    return ("SET", WATCHED_KEY, 1, "EX", LIFETIME)


def is_watched_command() -> Command:
    return ("GET", WATCHED_KEY)


def publish_commands(snapshot: RouterSnapshot) -> list[Command]:
    encoded = msgspec.json.encode(snapshot)
    while len(encoded) > MAX_SNAPSHOT and snapshot.engines:
        snapshot = replace(snapshot, engines=snapshot.engines[: len(snapshot.engines) // 2])
        encoded = msgspec.json.encode(snapshot)
    return [("HSET", SNAPSHOTS_KEY, snapshot.router.id, encoded), ("EXPIRE", SNAPSHOTS_KEY, _RETENTION)]


def withdraw_command(router_id: str) -> Command:
    return ("HDEL", SNAPSHOTS_KEY, router_id)


def read_command() -> Command:
    return ("HGETALL", SNAPSHOTS_KEY)


def decode_snapshots(reply: Any) -> list[RouterSnapshot]:
    """The snapshots in the reply to `read_command`; what cannot be decoded is left out."""
    return list(_decode_values(hash_fields(reply).values()))


def _decode_values(values: Iterable[bytes]) -> Iterator[RouterSnapshot]:
    for _, value in zip(range(MAX_SNAPSHOTS), values, strict=False):
        if len(value) <= MAX_SNAPSHOT:
            try:
                yield _decoder.decode(value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue


def prune_commands(snapshots: Iterable[RouterSnapshot], now: float) -> list[Command]:
    """Deletes the snapshots of processes that ended long ago."""
    return [withdraw_command(each.router.id) for each in snapshots if abs(now - each.published_at) > _RETENTION]


def live_snapshots(snapshots: Iterable[RouterSnapshot], now: float) -> list[RouterSnapshot]:
    """Those that were published in the last LIFETIME seconds.

    One from the future is older than a step back of Redis' clock, as a failover may cause it: its process publishes
    again with the new time, if it lives.
    """
    return [each for each in snapshots if abs(now - each.published_at) <= LIFETIME]


def router_rows(snapshots: Iterable[RouterSnapshot], now: float) -> tuple[RouterRow, ...]:
    """By host and age, in the same order whichever process answers."""
    rows = [replace(each.router, seen=round(max(0.0, now - each.published_at), 3)) for each in snapshots]
    return tuple(sorted(rows, key=lambda row: (row.host, row.started_at, row.id)))


def merge_engines(snapshots: Iterable[RouterSnapshot]) -> tuple[EngineRow, ...]:
    """Each engine as the process sees it for which it is worst, with the loads of all added up.

    Of processes that see it alike, the first counts. One that cannot reach an engine must not be hidden by the others.

    The workers of a router have one limit together, so it counts once.
    """
    rows: dict[str, EngineRow] = {}
    counted: set[tuple[object, ...]] = set()
    for snapshot in snapshots:
        router = snapshot.router
        for engine in snapshot.engines:
            # A process without a supervisor is a router of its own.
            limit_of = (engine.name, router.host, router.supervisor or router.id)
            known = rows.get(engine.name)
            if known is None:
                rows[engine.name] = EngineRow(**asdict(engine))
            else:
                row = _with_load_of(known, engine, adds_limit=limit_of not in counted)
                rows[engine.name] = row if _badness(engine) <= _badness(known) else _as_seen_by(engine, row)
            counted.add(limit_of)
    return tuple(rows.values())


_STATES: Final[Mapping[EngineState, int]] = {"up": 0, "unknown": 0, "down": 1, "refused": 2}
_BREAKERS: Final[Mapping[BreakerStateName, int]] = {"closed": 0, "half-open": 1, "open": 2}


def _badness(engine: EngineRow) -> tuple[int, int]:
    return _STATES[engine.state], _BREAKERS[engine.breaker]


def _as_seen_by(engine: EngineRow, row: EngineRow) -> EngineRow:
    return replace(row, state=engine.state, breaker=engine.breaker, since=engine.since, cause=engine.cause)


def _with_load_of(row: EngineRow, other: EngineRow, *, adds_limit: bool) -> EngineRow:
    limit = row.max_in_flight
    if adds_limit:
        limit = None if limit is None or other.max_in_flight is None else limit + other.max_in_flight
    in_flight, failures = row.in_flight + other.in_flight, row.failures + other.failures
    return replace(row, in_flight=in_flight, max_in_flight=limit, failures=failures)


def merge_models(snapshots: Iterable[RouterSnapshot], engines: Sequence[EngineRow]) -> tuple[ModelRow, ...]:
    models: dict[str, ModelRow] = {}
    for snapshot in snapshots:
        models = {**{model.name: model for model in snapshot.models}, **models}
    names = _names_by_model(engines)
    return tuple(replace(model, engines=names.get(model.name, ())) for model in models.values())


def _names_by_model(engines: Sequence[EngineRow]) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(e.name for e in engines if e.model == name) for name in {e.model for e in engines}}
