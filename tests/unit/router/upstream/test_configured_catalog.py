"""The engines that the settings describe, and what they keep when the settings change."""

import pytest

from router.settings import Settings, parse
from router.upstream.catalog import Catalog
from router.upstream.configured_catalog import build_catalog, share_of_worker


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


@pytest.mark.parametrize(("workers", "limit", "share"), [(4, 16, 4), (4, 7, 1), (4, 2, 1), (1, 5, 5), (4, None, None)])
def test_workers_divide_the_limit_of_an_engine_and_each_may_do_something(
    workers: int, limit: int | None, share: int | None
) -> None:
    assert share_of_worker(limit, workers) == share
    text = f"{URL}\nmax_in_flight = {limit}" if limit is not None else URL
    (engine,) = build_catalog(settings(text, rest=f"[router]\nworkers = {workers}")).engines.values()
    assert engine.max_in_flight == share


def test_an_engine_whose_settings_stay_is_the_same_object_so_that_its_requests_stay_counted() -> None:
    old = settings(URL)
    before = build_catalog(old)
    after = reloaded(old, before, settings(URL, rest='[cache]\nttl = "1h"'))
    assert after.engines["one"] is before.engines["one"]


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
    assert after.engines["one"].baseline == "plain"
