"""The engines that the settings describe, and what they keep when the settings change."""

import pytest

from router.settings import Settings, parse
from router.shared.engines.announcements import AnnouncedEngine
from router.upstream.catalog import Catalog
from router.upstream.configured_catalog import build_catalog
from router.upstream.process_slots import ProcessSlots


def settings(engine: str = "", *, rest: str = "") -> Settings:
    return parse(
        '[[model]]\nname = "llama"\nrevision = "1"\n'
        f'[[engine]]\nname = "one"\nmodel = "llama"\ntask = "any"\nserved_model = "m"\n{engine}\n{rest}',
        {},
    )


def reloaded(old: Settings, catalog: Catalog, new: Settings) -> Catalog:
    return build_catalog(new, (old, catalog))


URL = 'url = "http://127.0.0.1:1"'
URLS = 'urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]'


def test_each_address_of_an_engine_is_an_engine_of_its_own() -> None:
    engines = build_catalog(settings(URLS)).engines
    assert {name: (engine.family, engine.address) for name, engine in engines.items()} == {
        "one.1": ("one", "127.0.0.1:1"),
        "one.2": ("one", "127.0.0.1:2"),
    }


def test_workers_do_not_divide_the_limit_of_an_engine() -> None:
    text = f"{URL}\nmax_in_flight = 7"
    (engine,) = build_catalog(settings(text, rest="[router]\nworkers = 4")).engines.values()
    assert engine.max_in_flight == 7


def test_an_engine_whose_settings_stay_is_the_same_object_so_that_its_requests_stay_counted() -> None:
    old = settings(URL)
    before = build_catalog(old)
    after = reloaded(old, before, settings(URL, rest='[cache]\nttl = "1h"'))
    assert after.engines["one"] is before.engines["one"]


def test_a_replica_that_stays_at_its_place_is_the_same_object() -> None:
    old = settings(URLS)
    before = build_catalog(old)
    after = reloaded(old, before, settings('urls = ["http://127.0.0.1:1", "http://127.0.0.1:3", "http://127.0.0.1:4"]'))
    assert after.engines["one.1"] is before.engines["one.1"]
    assert after.engines["one.2"] is not before.engines["one.2"]


def test_a_replica_keeps_what_is_known_of_it_when_its_place_among_the_urls_changes() -> None:
    old = settings(URLS)
    before = build_catalog(old)
    before.engines["one.1"].update_status(up=False)
    before.engines["one.2"].update_status(up=True)
    after = reloaded(old, before, settings('urls = ["http://127.0.0.1:2", "http://127.0.0.1:3"]')).engines
    assert (after["one.1"].up, after["one.2"].up) == (True, None)


@pytest.mark.parametrize(
    "new",
    [settings(f"{URL}\nmax_in_flight = 3"), settings(URL, rest="[breaker]\nfailures = 9")],
    ids=["engine", "breaker"],
)
def test_an_engine_with_other_settings_is_a_new_one_and_inherits_what_is_known_of_the_process(new: Settings) -> None:
    old = settings(URL)
    before = build_catalog(old)
    before.engines["one"].update_status(up=True)
    before.engines["one"].drained = True
    after = reloaded(old, before, new).engines["one"]
    assert after is not before.engines["one"]
    assert (after.up, after.drained, after.in_flight) == (True, True, 0)


def test_an_engine_at_another_address_inherits_nothing() -> None:
    old = settings(URL)
    before = build_catalog(old)
    before.engines["one"].update_status(up=True)
    assert reloaded(old, before, settings('url = "http://127.0.0.1:9"')).engines["one"].up is None


LAUNCH = '[engine.launch]\ntarget = "t"\n'
DRAFT = LAUNCH + 'draft = "d"\n'


def other(launch: str, *, name: str = "plain", host: str = "127.0.0.1", model: str = "llama") -> str:
    """A further engine without a draft, or with one."""
    return f'[[engine]]\nname = "{name}"\nmodel = "{model}"\nurl = "http://{host}:2"\n{launch}'


@pytest.mark.parametrize(
    ("rest", "baseline"),
    [
        (other(LAUNCH), "plain"),
        (other(LAUNCH + "gpus = [1]\ngpu_memory_utilization = 0.5\n"), None),
        (other(LAUNCH + "gpu_memory_utilization = 0.5\n"), "plain"),
        (other(LAUNCH + 'quantization = "fp8"\n'), None),
        (other(LAUNCH, host="gpu2"), None),
        (other(LAUNCH.replace('"t"', '"u"')), None),
        (other(DRAFT), None),
        (other(""), None),
        ("", None),
    ],
)
def test_the_same_engine_without_its_draft_has_the_same_launch_on_the_same_host(
    rest: str, baseline: str | None
) -> None:
    engines = build_catalog(settings(f"{URL}\n{DRAFT}", rest=rest)).engines
    assert engines["one"].baseline == baseline
    assert all(engine.baseline is None for name, engine in engines.items() if name != "one")


def test_an_engine_that_is_added_later_is_compared_with() -> None:
    old = settings(f"{URL}\n{DRAFT}")
    before = build_catalog(old)
    after = reloaded(old, before, settings(f"{URL}\n{DRAFT}", rest=other(LAUNCH)))
    assert after.engines["one"] is before.engines["one"]
    assert after.engines["one"].baseline is None, "it is still that of the configuration before"
    after.take_effect()
    assert after.engines["one"].baseline == "plain"


def test_an_engine_that_is_throttled_stays_so_while_its_settings_change() -> None:
    old, new = settings(f"{URL}\nmax_in_flight = 4"), settings(f"{URL}\nmax_in_flight = 4\nmax_model_len = 1000")
    slots = ProcessSlots()
    before = build_catalog(old, slots=slots)
    engine = before.engines["one"]
    engine.set_announced(
        AnnouncedEngine(name="one", model="llama", task="any", url="http://127.0.0.1:1", served_model="m", capacity=0.5)
    )
    assert [engine.take_slot() for _ in range(3)] == [True, True, False]
    granted: list[bool] = []
    engine.on_slot_freed = (lambda waited_for: granted.append(waited_for.take_slot()),)  # as for one that waits
    after = build_catalog(new, (old, before), slots).engines["one"]
    assert (after.max_in_flight, any(granted)) == (2, False)


def test_each_rank_of_each_address_is_an_engine_of_its_own_that_its_requests_name() -> None:
    engines = build_catalog(settings(f"{URLS}\ndata_parallel = 2")).engines
    found = {name: (each.url[-1], each.rank, each.id[-3:], each.family) for name, each in engines.items()}
    assert found == {
        "one.1": ("1", 0, "1#0", "one"), "one.2": ("1", 1, "1#1", "one"),
        "one.3": ("2", 0, "2#0", "one"), "one.4": ("2", 1, "2#1", "one"),
    }  # fmt: skip
    heads = [engine.target("/v1/chat/completions").post_prefix.lower() for engine in engines.values()]
    assert [b"x-data-parallel-rank: %d\r\n" % rank in head for rank, head in zip((0, 1, 0, 1), heads, strict=True)]


def test_an_engine_without_ranks_gets_no_rank() -> None:
    engine = build_catalog(settings(URL)).engines["one"]
    assert b"rank" not in engine.target("/").post_prefix
    assert (engine.rank, engine.id) == (None, "http://127.0.0.1:1")


def test_a_rank_that_stays_is_the_same_object_when_others_come() -> None:
    old = settings(f"{URL}\ndata_parallel = 2")
    before = build_catalog(old)
    after = reloaded(old, before, settings(f"{URL}\ndata_parallel = 3"))
    assert list(after.engines) == ["one.1", "one.2", "one.3"]
    assert after.engines["one.2"] is before.engines["one.2"]
