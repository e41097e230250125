"""The metric of the drafts' tokens per step by bin."""

from router.settings import parse
from router.telemetry.draft_metrics import draft_families
from router.upstream.configured_catalog import build_catalog
from tests.support.router_server import router_config


def test_each_known_bin_of_an_engine_has_a_sample_and_an_unknown_one_has_none() -> None:
    urls = {
        "llama-chat": ("llama", "chat", "http://127.0.0.1:1"),
        "llama-code": ("llama", "code", "http://127.0.0.1:2"),
    }
    engines = build_catalog(parse(router_config("unix:///x", urls), {})).engines
    engines["llama-chat"].tokens_per_step_by_bin = {0: 3.5, 7: 1.25}
    _, family = draft_families(engines.values())
    assert {(sample.labels["engine"], sample.labels["bin"]): sample.value for sample in family.samples} == {
        ("llama-chat", "0"): 3.5,
        ("llama-chat", "7"): 1.25,
    }
    assert family.name == "roundhouse_draft_tokens_per_step"


def test_the_info_of_an_engine_names_its_draft() -> None:
    text = router_config("unix:///x", {"llama-chat": ("llama", "chat", "http://127.0.0.1:1")})
    launch = '\n[engine.launch]\ntarget = "t"\ndraft = "d"\n'
    for configuration, draft in (
        (text + launch, "d"),
        (text, ""),
        (text + launch.replace('draft = "d"', 'speculation = "ngram"'), "ngram"),
    ):
        info, _ = draft_families(build_catalog(parse(configuration, {})).engines.values())
        (sample,) = info.samples
        assert sample.name == "roundhouse_engine_info"
        assert sample.labels == {"engine": "llama-chat", "model": "llama", "task": "chat", "draft": draft}
