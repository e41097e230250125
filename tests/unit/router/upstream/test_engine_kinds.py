"""What is known of an engine's server: from the configuration, from its own word, from what it shows."""

import json
from typing import Any

import pytest

from router.settings import parse
from router.upstream.configured_catalog import build_catalog
from router.upstream.engine import Engine
from router.upstream.engine_kinds import UNKNOWN, ListedModel, parse_model_list


def engine(settings: str = "") -> Engine:
    text = f'[[model]]\nname = "m"\n[[engine]]\nname = "a"\nmodel = "m"\nurl = "http://h"\n{settings}\n'
    return build_catalog(parse(text, {})).engines["a"]


@pytest.mark.parametrize(
    ("model", "listed"),
    [
        ({"owned_by": "vllm", "max_model_len": 4096}, ListedModel("vllm", 4096)),
        ({"owned_by": "sglang", "max_model_len": 4096}, ListedModel("sglang", 4096)),
        ({"owned_by": "llamacpp", "meta": {"n_ctx": 2048}}, ListedModel("llama.cpp", 2048)),
        ({"owned_by": "library"}, ListedModel("ollama")),
        ({"owned_by": "system"}, ListedModel()),
        ({"owned_by": None}, ListedModel()),
        ({"owned_by": 7}, ListedModel()),
        ({}, ListedModel()),
    ],
)
def test_a_server_is_recognized_by_the_owner_of_its_models(model: dict[str, Any], listed: ListedModel) -> None:
    assert parse_model_list(json.dumps({"data": [{"id": "m"} | model]}).encode(), "m") == listed


def test_an_unknown_server_may_do_anything_that_the_api_allows() -> None:
    unknown = engine()
    assert (unknown.kind, unknown.traits) == (None, UNKNOWN)
    assert unknown.traits.ends_without_done


def test_an_engine_tells_its_kind_until_it_goes_down() -> None:
    told = engine()
    told.learn_kind("llama.cpp")
    assert (told.kind, told.traits.cache_salt) == ("llama.cpp", False)
    told.learn_kind(None)  # a page that does not tell it
    assert told.kind == "llama.cpp"
    told.update_status(up=False)
    assert told.traits == UNKNOWN


def test_the_configured_kind_and_traits_count_more_than_what_is_told() -> None:
    configured = engine('kind = "vllm"\nstream_usage = true\nhealth = "/up"')
    configured.learn_kind("ollama")
    assert (configured.kind, configured.traits.health, configured.traits.has_metrics) == ("vllm", "/up", True)
    assert not configured.learn(stream_usage=False)
    assert configured.traits.stream_usage
    assert not configured.learn(health="/v1/models")


def test_what_a_server_shows_is_learned_once() -> None:
    shown = engine()
    assert shown.learn(stream_usage=False)
    assert not shown.learn(stream_usage=False)
    assert not shown.traits.stream_usage


def test_an_engine_that_roundhouse_starts_is_vllm() -> None:
    assert engine('[engine.launch]\ntarget = "t"').kind == "vllm"
