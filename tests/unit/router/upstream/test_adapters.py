"""The adapters that engines list, as models: their names, their revisions, and the engines that they are at."""

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ApiError
from router.upstream.adapters import (
    MAX_ADAPTERS,
    MAX_ID_LENGTH,
    Adapter,
    FoundAdapters,
    ListedAdapter,
    adapter_name,
    adapter_revision,
    find_adapters,
)
from router.upstream.catalog import MAX_REPORTED, Catalog, Model
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from router.upstream.engine_kinds import parse_model_list


def adapters(*pairs: tuple[str, str]) -> tuple[ListedAdapter, ...]:
    return tuple(ListedAdapter(*pair) for pair in pairs)


def find(*listed: tuple[str, str, Sequence[ListedAdapter]], configured: tuple[str, ...] = ()) -> FoundAdapters:
    return find_adapters(listed, frozenset(configured))


def engine(name: str, *listed: tuple[str, str], model: str = "llama") -> Engine:
    created = Engine(EngineConfig(name=name, model=model, task="any", url="http://127.0.0.1:1", served_model="m"))
    created.adapters = adapters(*listed)
    return created


# -- names and revisions ----------------------------------------------------------------------------------------------


@given(st.from_regex(r"[a-z0-9._-]{1,64}", fullmatch=True), st.text(min_size=1, max_size=MAX_ID_LENGTH))
def test_a_name_can_be_part_of_a_key_whatever_the_id_is(base: str, adapter_id: str) -> None:
    adapter_id = adapter_id.encode("utf-8", "replace").decode()
    assert re.fullmatch(r"[a-z0-9._-]{1,64}", adapter_name(base, adapter_id))


def test_a_name_shows_the_base_model_and_the_id() -> None:
    assert re.fullmatch(r"llama\.team-sql-v2\.[0-9a-f]{8}", adapter_name("llama", "Team/SQL v2"))


def test_ids_that_look_alike_have_different_names() -> None:
    ids = ["sql", "SQL", "s ql", "s/ql", "sql-" + "x" * 99, "sql-" + "x" * 100]
    assert len({adapter_name(base, each) for each in ids for base in ("llama", "phi")}) == 2 * len(ids)


def test_each_of_what_identifies_an_adapter_changes_its_revision() -> None:
    one = Adapter("a", "/a", "llama")
    others = [("1", Adapter("a", "/b", "llama")), ("1", Adapter("b", "/a", "llama")), ("2", one), ("1,a", one)]
    assert len({adapter_revision("1", one), *(adapter_revision(*other) for other in others)}) == 5


# -- what engines list ------------------------------------------------------------------------------------------------


def listed(*models: Any) -> bytes:
    return json.dumps({"data": models}).encode()


BASE = {"id": "m", "owned_by": "vllm", "root": "/m", "parent": None, "max_model_len": 9}


def test_a_list_gives_the_models_that_have_a_parent() -> None:
    page = listed(BASE, {"id": "a", "root": "/a", "parent": "m"}, {"id": "m2", "parent": None})
    assert parse_model_list(page, "m").adapters == adapters(("a", "/a"))


def test_an_engine_whose_own_model_is_an_adapter_has_no_others() -> None:
    page = listed(BASE, {"id": "a", "root": "/a", "parent": "m"}, {"id": "b", "root": "/b", "parent": "m"})
    assert parse_model_list(page, "a").adapters == ()


@pytest.mark.parametrize("odd", ["", " ", "a\nb", "a\x1b[2J", "x" * (MAX_ID_LENGTH + 1), "\ud800"])
def test_an_id_that_could_not_be_shown_is_ignored_and_counted(odd: str) -> None:
    found = parse_model_list(listed(BASE, {"id": odd, "root": "/a", "parent": "m"}), "m")
    assert (found.adapters, found.ignored_adapters) == ((), 1) or odd == "\ud800"


def test_the_number_of_adapters_of_an_engine_is_bounded() -> None:
    page = listed(BASE, *({"id": f"a{n}", "root": "/", "parent": "m"} for n in range(MAX_ADAPTERS + 7)))
    found = parse_model_list(page, "m")
    assert (len(found.adapters), found.ignored_adapters) == (MAX_ADAPTERS, 7)


# -- the engines of an adapter ----------------------------------------------------------------------------------------


def test_an_adapter_has_the_engines_that_list_it() -> None:
    found = find(("one", "llama", adapters(("a", "/a"))), ("two", "llama", adapters(("a", "/a"), ("b", "/b"))))
    assert found.engines == {Adapter("a", "/a", "llama"): ["one", "two"], Adapter("b", "/b", "llama"): ["two"]}
    assert found.problems == []


def test_engines_with_another_path_do_not_get_the_requests() -> None:
    old, new = adapters(("a", "/v1")), adapters(("a", "/v2"))
    found = find(("one", "llama", old), ("two", "llama", new), ("three", "llama", new))
    assert found.engines == {Adapter("a", "/v2", "llama"): ["two", "three"]}
    (problem,) = found.problems
    assert problem.endswith("loaded it from '/v2' for the model llama, not to one")


def test_equally_many_engines_of_two_paths_are_decided_the_same_way_in_any_order() -> None:
    engines = [("one", "llama", adapters(("a", "/v1"))), ("two", "llama", adapters(("a", "/v2")))]
    assert find(*engines).engines == find(*reversed(engines)).engines == {Adapter("a", "/v2", "llama"): ["two"]}


def test_a_configured_name_counts_more() -> None:
    found = find(("one", "llama", adapters(("a", "/a"))), configured=("a",))
    assert (found.engines, len(found.problems)) == ({}, 1)
    assert find(("one", "llama", adapters(("a", "/a"))), configured=(adapter_name("llama", "a"),)).engines == {}


# -- the catalog ------------------------------------------------------------------------------------------------------


def test_the_catalog_follows_the_lists() -> None:
    one = engine("one", ("a", "/a"))
    catalog = Catalog([Model("llama", "1")], [one, engine("two")])
    found = catalog.resolve("a", None)
    assert catalog.engines_for(found.name) == [one]
    assert dict(catalog.named_models())["a"] is found
    assert (found.public_name, found.configured_name) == ("a", "llama")
    one.adapters = adapters(("a", "/b"))
    catalog.update_adapters()
    assert catalog.resolve("a", None).revision != found.revision
    one.adapters = ()
    catalog.update_adapters()
    with pytest.raises(ApiError):
        catalog.resolve("a", None)
    assert catalog.engines_for(found.name) == ()


def test_an_adapter_has_no_fallback_although_its_base_model_has_one() -> None:
    models = [Model("llama", "1", fallback="phi"), Model("phi", "1")]
    catalog = Catalog(models, [engine("one", ("a", "/a")), engine("two", model="phi")])
    name = catalog.resolve("a", None).name
    assert catalog.fallback_chain(name) == (name,)


def test_only_so_many_adapters_get_a_label_of_their_own_also_after_a_reload() -> None:
    one = engine("one", *((f"a{n}", "/") for n in range(MAX_REPORTED)))
    catalog = Catalog([Model("llama", "1")], [one])
    labels = {model.reported_name for _, model in catalog.named_models() if model is not None and model.adapter}
    assert len(labels) == MAX_REPORTED
    one.adapters = adapters(("new", "/"), ("a0", "/"))
    for later in (catalog, Catalog([Model("llama", "1")], [one], catalog.reported_adapters)):
        later.update_adapters()
        assert later.resolve("new", None).reported_name == "llama"
        assert later.resolve("a0", None).reported_name == adapter_name("llama", "a0")


def test_a_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    one = engine("one", ("llama", "/a"))
    catalog = Catalog([Model("llama", "1")], [one])
    catalog.update_adapters()
    assert caplog.text.count("the configuration has a model or an alias of that name") == 1
