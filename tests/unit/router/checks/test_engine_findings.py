"""What is said about engines and models, from what the engines say of themselves."""

from typing import Any

import pytest

from router.checks.engine_facts import Counters, EngineFacts
from router.checks.engine_findings import judge_engine
from router.checks.machine import MachineFacts, judge_machine
from router.checks.model_findings import judge_models, same_server
from router.settings import EngineSettings, Settings
from router.settings.tables import LaunchSettings, ModelSettings

DRAFTING = LaunchSettings(target="org/target", draft="org/draft")


def engine(name: str = "one", *, url: str = "http://127.0.0.1:8001", **settings: Any) -> EngineSettings:
    return EngineSettings(**{"name": name, "model": "llama", "url": url, **settings})


def facts(settings: EngineSettings, **more: Any) -> EngineFacts:
    places: dict[str, Any] = {"setting": "engine[0].url", "table": "engine[0]"}
    return EngineFacts(engine=settings, url=settings.addresses[0], names=("llama",), **places, **more)


def notes(settings: EngineSettings, **more: Any) -> list[str]:
    return [finding.note for finding in judge_engine(facts(settings, **more)) if finding.level != "ok"]


def model_notes(*engines: EngineFacts, **model: Any) -> list[str]:
    settings = Settings(model=[ModelSettings(name="llama", **model)], engine=[one.engine for one in engines])
    return [finding.note for finding in judge_models(settings, engines)]


@pytest.mark.parametrize(
    ("counters", "note"),
    [
        (Counters(drafts=7.0, generated=400.0), None),
        (Counters(drafts=0.0, generated=0.0), None),  # nobody has asked it yet
        (Counters(drafts=0.0, generated=400.0), "has drafted nothing in 400 tokens"),
        (Counters(drafts=None, generated=0.0), "runs without speculative decoding: it has no counters for it"),
        (None, None),
    ],
)
def test_a_draft_that_does_not_speculate_is_found_by_its_counters(counters: Counters | None, note: str | None) -> None:
    assert notes(engine(launch=DRAFTING), counters=counters) == ([note] if note is not None else [])
    assert notes(engine(launch=LaunchSettings(target="org/target")), counters=counters) == []


@pytest.mark.parametrize(
    ("ranks", "configured", "note"),
    [
        (None, 2, None),
        (2, 2, None),
        (1, 1, None),
        (1, 2, "has 1 data-parallel rank, but data_parallel is 2: it refuses the requests for the others"),
        (4, 1, "has 4 data-parallel ranks, but data_parallel is 1: the router does not know which one holds a prompt"),
    ],
)  # fmt: skip
def test_the_ranks_of_an_engine_are_those_of_its_metrics(ranks: int | None, configured: int, note: str | None) -> None:
    assert notes(engine(data_parallel=configured), ranks=ranks) == ([note] if note is not None else [])


def test_only_names_of_a_hub_are_compared() -> None:
    assert notes(engine(launch=DRAFTING), root="org/other") == ["runs org/other, but launch.target is org/target"]
    assert notes(engine(launch=DRAFTING), root="/models/target") == []


def test_a_key_over_unencrypted_http_is_a_warning_except_on_this_machine() -> None:
    remote = "http://192.0.2.7:8000"
    assert notes(engine(url=remote, api_key="k")) == ["gets its api_key unencrypted"]
    assert notes(engine(url=remote, headers={"X-Api-Key": "k"})) == ["gets its api_key unencrypted"]
    for settings in (
        engine(url=remote), engine(api_key="k"), engine(url="http://localhost:1", api_key="k"),
        engine(url="https://192.0.2.7", api_key="k"), engine(url="unix:///run/e.sock", api_key="k"),
    ):  # fmt: skip
        assert notes(settings) == []


@pytest.mark.parametrize(
    "url", ["http://Engine.example", "http://engine.example:80", "http://engine.example/v1", "http://engine.example/"]
)
def test_urls_of_the_same_server_are_equal(url: str) -> None:
    first, second = engine(url=url).addresses + engine(url="http://engine.example").addresses
    assert same_server(first) == same_server(second)
    assert same_server(first) != same_server("http://engine.example:8080")


def test_a_server_may_stand_behind_two_engines_with_different_models() -> None:
    both = facts(engine()), facts(engine("two"))
    assert len(model_notes(*both)) == 1
    assert model_notes(both[0], facts(engine("two", served_model="adapter"))) == []


def test_engines_of_a_model_of_which_some_only_embed_are_an_error() -> None:
    chat, embed = (
        facts(engine(), generates=True),
        facts(engine("two", url="http://[::1]:1"), generates=False, embeds=True),
    )
    assert model_notes(chat, embed) == ["one generates text, but two does not: requests fail by chance"]
    assert model_notes(embed, auto=["chat"]) == ['takes part in model = "auto", but its engines do not generate text']


@pytest.mark.parametrize("embeds", [True, False, None])
def test_an_endpoint_that_a_proxy_may_hide_is_a_warning_at_most(embeds: bool | None) -> None:
    """vLLM has the path of chats or that of embeddings; a proxy may answer both of these GETs with 404."""
    hidden = facts(engine(), generates=False, embeds=embeds)
    chat = facts(engine("two", url="http://[::1]:1"), generates=True)
    other = facts(engine("two", model="other", url="http://[::1]:1"), generates=True)
    models = {
        "auto": ([ModelSettings(name="llama", auto=["chat"])], [hidden]),
        "mixed": ([ModelSettings(name="llama")], [hidden, chat]),
        "fallback": ([ModelSettings(name="llama", fallback="other"), ModelSettings(name="other")], [hidden, other]),
        "of a chat": ([ModelSettings(name="llama"), ModelSettings(name="other", fallback="llama")], [hidden, other]),
    }
    for case, (configured, engines) in models.items():
        (found,) = judge_models(Settings(model=configured), engines)
        assert (found.level == "error") == (embeds is True), case
        unproven = "; as far as it can be seen: GET /v1/chat/completions gets 404 from one"
        assert found.note.endswith(unproven) == (embeds is not True), case


def test_an_engine_of_unknown_abilities_is_judged_by_nothing() -> None:
    assert model_notes(facts(engine()), facts(engine("two", url="http://[::1]:1"), generates=True), auto=["chat"]) == []


def test_too_few_open_files_for_the_engines_are_a_warning() -> None:
    settings = Settings(engine=[engine(max_in_flight=2000)])
    for files, levels in ((1024, ["ok", "warning"]), (9999, ["ok"])):
        assert [finding.level for finding in judge_machine(settings, MachineFacts(descriptors=files))] == levels
    (_, few) = judge_machine(Settings(), MachineFacts(descriptors=256))
    assert few.note == "256 files let a process serve only 96 clients"


def test_a_router_that_serves_at_the_port_is_no_mistake() -> None:
    (finding,) = judge_machine(Settings(), MachineFacts(bind_error=98, has_router=True))
    assert (finding.level, finding.note) == ("ok", "a router already serves there")
