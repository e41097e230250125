"""The snapshots that router processes share."""

from typing import Any

import msgspec
from msgspec.structs import replace

from router.shared.status.router_snapshots import (
    LIFETIME,
    MAX_SNAPSHOT,
    MAX_SNAPSHOTS,
    PackedEngine,
    RouterSnapshot,
    decode_snapshots,
    live_snapshots,
    merge_engines,
    merge_models,
    prune_commands,
    publish_commands,
    router_rows,
)
from router.shared.status.status_documents import ModelRow, RouterRow


def snapshot(
    router_id: str, *engines: PackedEngine, at: float = 100.0, models: tuple[ModelRow, ...] = ()
) -> RouterSnapshot:
    router = RouterRow(
        id=router_id, host="h", pid=1, version="1", compiled=False, started_at=1.0, in_flight=0, queued=0, seen=0.0,
        draining=False,
    )  # fmt: skip
    return RouterSnapshot(published_at=at, router=router, engines=engines, models=models)


def engine(name: str, **fields: Any) -> PackedEngine:
    return PackedEngine(name=name, model="m", task="any", url=f"http://{name}", **fields)


def published(one: RouterSnapshot) -> bytes:
    (_, _, _, encoded), _ = publish_commands(one)
    assert isinstance(encoded, bytes)
    return encoded


def test_a_snapshot_comes_back_as_it_was() -> None:
    one = snapshot("a", engine("e", running=1.5, draft="d"), models=(ModelRow(name="m", fallback="n"),))
    assert list(decode_snapshots({b"a": published(one)})) == [one]


def test_256_engines_fit_into_a_snapshot_and_more_are_cut() -> None:
    def many(count: int) -> RouterSnapshot:
        engines = [
            engine(f"engine-with-a-name-{number}", draft="meta-llama/a-draft", kv_cache_usage=0.123456789)
            for number in range(count)
        ]
        return snapshot("a", *engines)

    assert len(msgspec.json.decode(published(many(256)))["engines"]) == 256
    cut = published(many(2000))
    assert len(cut) <= MAX_SNAPSHOT
    assert msgspec.json.decode(cut)["router"]["id"] == "a"


def test_what_is_no_snapshot_is_left_out() -> None:
    valid = published(snapshot("a"))
    values = [b"", b"{}", b"\xff", b"[]", b" " * (MAX_SNAPSHOT + 1), valid]
    assert [each.router.id for each in decode_snapshots({b"%d" % at: value for at, value in enumerate(values)})] == [
        "a"
    ]
    assert decode_snapshots(None) == decode_snapshots([]) == []
    assert len(decode_snapshots({b"%d" % at: valid for at in range(MAX_SNAPSHOTS + 9)})) == MAX_SNAPSHOTS


def test_a_snapshot_counts_for_its_lifetime_and_is_deleted_later() -> None:
    fresh, old, dead = snapshot("a", at=100.0), snapshot("b", at=99.0), snapshot("c", at=1.0)
    assert live_snapshots([old, fresh, dead], 99.5 + LIFETIME) == [fresh]
    assert prune_commands([old, fresh, dead], 99.5 + LIFETIME) == [("HDEL", "rh:1:router:snapshots", "c")]
    assert [row.seen for row in router_rows([fresh, old], 101.0)] == [1.0, 2.0]


def test_a_snapshot_from_before_a_step_back_of_redis_clock_does_not_count() -> None:
    before, after = snapshot("a", at=5000.0), snapshot("b", at=100.0)
    assert live_snapshots([before, after], 101.0) == [after]
    assert prune_commands([before, after], 101.0) == [("HDEL", "rh:1:router:snapshots", "a")]


def test_engines_of_several_routers_are_merged() -> None:
    own = snapshot("a", engine("e", state="up", in_flight=1, max_in_flight=4), engine("f", max_in_flight=4))
    other = snapshot("b", engine("e", state="down", in_flight=2, max_in_flight=4), engine("f"), engine("g"))
    first, second, third = merge_engines([own, other])
    # A process that cannot reach an engine is not hidden by those that can.
    assert (first.name, first.state, first.in_flight, first.max_in_flight) == ("e", "down", 3, 8)
    assert (second.name, second.max_in_flight) == ("f", None)
    assert third.name == "g"


def test_the_limit_of_the_workers_of_one_router_counts_once() -> None:
    def worker(name: str, supervisor: int | None) -> RouterSnapshot:
        of_router = snapshot(name, engine("e", in_flight=1, max_in_flight=4))
        return replace(of_router, router=replace(of_router.router, supervisor=supervisor))

    (merged,) = merge_engines([worker("a", 10), worker("b", 10), worker("c", 20), worker("d", None), worker("e", None)])
    assert (merged.in_flight, merged.max_in_flight) == (5, 16)


def test_models_of_several_routers_are_merged() -> None:
    own = snapshot("a", engine("e"), models=(ModelRow(name="m"),))
    other = snapshot("b", models=(ModelRow(name="m", fallback="other"), ModelRow(name="n")))
    engines = merge_engines([own, other])
    assert merge_models([own, other], engines) == (ModelRow(name="m", engines=("e",)), ModelRow(name="n"))
