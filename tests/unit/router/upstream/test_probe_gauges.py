"""The gauges of an engine's metrics page; what the page lacks is unknown, never 0."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.draft_models.counted_steps import SpeculationCounters
from router.upstream.engine_gauges import EngineGauges, parse_gauges
from router.upstream.engine_kinds import parse_model_list
from tests.support.paths import CAPTURES

CAPTURE: Final = CAPTURES / "metrics.txt"
"""The lines of a real vLLM server's metrics page, without their values."""

VALUES: Final = {
    "vllm:kv_cache_usage_perc{": "0.25",
    "vllm:num_requests_running{": "2.0",
    "vllm:num_requests_waiting{": "1.0",
    "vllm:prefix_cache_queries_total{": "42.0",
    "vllm:prefix_cache_hits_total{": "21.0",
    "vllm:spec_decode_num_drafts_total{": "155.0",
    "vllm:spec_decode_num_draft_tokens_total{": "620.0",
    "vllm:spec_decode_num_accepted_tokens_total{": "349.0",
}


def page_of_vllm() -> str:
    """A real server's page; gauges without a given value have one that a test would detect."""
    lines = []
    for line in CAPTURE.read_text().splitlines():
        known = next((value for name, value in VALUES.items() if line.startswith(name)), "777.0")
        lines.append(line if line.startswith("#") else f"{line} {known}")
    return "\n".join(lines) + "\n"


def test_a_page_of_vllm_is_read() -> None:
    assert parse_gauges(page_of_vllm()) == EngineGauges(
        kv_cache_usage=0.25,
        kv_cache_tokens=1048576,
        running=2,
        waiting=1,
        prefix_cache_hit_rate=0.5,
        spec_acceptance_rate=349 / 620,
        spec_tokens_per_step=1 + 349 / 155,
        spec_counts=SpeculationCounters(155, 349),
        progress=(777.0, 777.0, 777.0, 0.25),  # tokens generated and prefilled, those of all steps, the KV cache
    )


@pytest.mark.parametrize(
    ("labels", "rest"),
    [
        ('{engine="1"}', " 3"),
        ('{engine="1"}', " 3 1700000000"),
        ('{engine="1"}', '3 # {engine="2"} 4'),
        ('{model_name="a # b} c",engine="1"}', " 3e0"),
        (r'{model_name="\"{\\",engine="1"}', " +3.0"),
        ("", "  3"),
        ("", "\t3"),
        (" ", " 3"),
    ],
)
def test_a_sample_is_read_whatever_follows_it_and_is_in_its_labels(labels: str, rest: str) -> None:
    page = f"vllm:num_requests_running{labels}{rest}\n"
    assert parse_gauges(page).running == 3
    if "engine" in labels:
        assert [parse_gauges(page, rank).running for rank in (1, 2)] == [3, None]


@pytest.mark.parametrize("value", ["", "x", "1_0", "0x1"])
def test_a_value_that_is_no_number_is_an_error(value: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_gauges(f'vllm:num_requests_running{{engine="0"}} {value}\n')


@pytest.mark.parametrize("page", ["", "\n", "# HELP x y\n", "process_cpu_seconds_total 1.0\n", "<html></html>"])
def test_a_missing_metric_is_unknown_and_not_0(page: str) -> None:
    assert parse_gauges(page) == EngineGauges()


@pytest.mark.parametrize(
    ("labels", "tokens"),
    [
        ('block_size="16",num_gpu_blocks="100"', 1600),
        ('block_size="16",num_gpu_blocks="None"', None),
        ('block_size="16"', None),
        ('block_size="16",num_gpu_blocks="-1"', None),
    ],
)
def test_the_size_of_the_kv_cache_is_read_from_labels(labels: str, tokens: int | None) -> None:
    assert parse_gauges(f"vllm:cache_config_info{{{labels}}} 1.0\n").kv_cache_tokens == tokens


def test_a_gauge_of_0_is_0() -> None:
    page = "vllm:kv_cache_usage_perc 0.0\nvllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
    assert parse_gauges(page) == EngineGauges(kv_cache_usage=0, running=0, waiting=0, progress=(0,))


def test_the_older_name_of_the_kv_cache_is_known_too() -> None:
    assert parse_gauges("vllm:gpu_cache_usage_perc 0.5\n").kv_cache_usage == 0.5
    assert parse_gauges("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.0\n").kv_cache_usage == 0


def test_a_ratio_with_a_zero_denominator_is_unknown() -> None:
    page = "".join(f"{name[:-1]} 0.0\n" for name in VALUES)
    gauges = parse_gauges(page)
    assert (gauges.prefix_cache_hit_rate, gauges.spec_acceptance_rate, gauges.spec_tokens_per_step) == (
        None,
        None,
        None,
    )


def test_a_ratio_needs_both_of_its_counters() -> None:
    assert parse_gauges("vllm:prefix_cache_queries_total 5\n").prefix_cache_hit_rate is None
    assert parse_gauges("vllm:prefix_cache_hits_total 5\n").prefix_cache_hit_rate is None
    assert parse_gauges("vllm:spec_decode_num_drafts_total 5\n").spec_tokens_per_step is None


def test_of_several_ranks_only_the_samples_of_one_count() -> None:
    page = """
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_running{engine="1",model_name="m"} 2
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.9
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.1
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="200"} 1
vllm:prompt_tokens_total{engine="1",model_name="m"} 7
"""
    assert parse_gauges(page, 1) == EngineGauges(
        kv_cache_usage=0.1, kv_cache_tokens=3200, running=2, waiting=4, progress=(7, 0.1)
    )
    assert parse_gauges(page, 0) == EngineGauges(
        kv_cache_usage=0.9, kv_cache_tokens=1600, running=1, waiting=3, progress=(0.9,)
    )
    assert parse_gauges(page, 2) == EngineGauges()


def test_engine_cores_behind_one_address_are_summed_and_the_fullest_cache_counts() -> None:
    page = (
        'vllm:num_requests_running{engine="0"} 2\nvllm:num_requests_running{engine="1"} 3\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
    )
    assert parse_gauges(page) == EngineGauges(running=5, kv_cache_usage=0.9, progress=(1.0,))


@pytest.mark.parametrize("value", ["NaN", "nan", "+Inf", "-Inf"])
def test_nan_from_an_exporter_is_unknown(value: str) -> None:
    assert parse_gauges(f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_running {value}\n") == EngineGauges()


def test_longer_names_are_other_metrics() -> None:
    page = 'vllm:num_requests_waiting_by_reason{reason="capacity"} 7\nvllm:num_requests_running_x 7\n'
    assert parse_gauges(page) == EngineGauges()


@pytest.mark.parametrize(
    ("page", "length"),
    [
        ('{"data": [{"id": "other", "max_model_len": 1}, {"id": "m", "max_model_len": 8192}]}', 8192),
        ('{"object": "list", "data": [{"id": "m", "root": "x", "max_model_len": 4096, "owned_by": "vllm"}]}', 4096),
        ('{"data": [{"id": "other", "max_model_len": 1}]}', None),
        ('{"data": [{"id": "m"}]}', None),
        ('{"data": [{"id": "m", "max_model_len": null}]}', None),
        ('{"data": [{"id": "m", "max_model_len": 0}]}', None),
        ('{"data": [{"id": "m", "max_model_len": "8192"}]}', None),
        ('{"data": {}}', None),
        ("", None),
        ("<html>", None),
        ('{"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 2048, "n_ctx_train": 4096}}]}', 2048),
    ],
)
def test_an_engines_context_length_is_in_its_list_of_models(page: str, length: int | None) -> None:
    assert parse_model_list(page.encode(), "m").max_model_len == length


NAME: Final = st.sampled_from([name[:-1] for name in VALUES])


@given(st.lists(st.builds("{}{}".format, NAME, st.text('{}=", \\\n1.xNa#+e', max_size=12)) | st.text(max_size=20)))
def test_no_page_raises_anything_but_the_documented_error(lines: list[str]) -> None:
    try:
        gauges = parse_gauges("\n".join(lines))
    except ValueError:
        return
    assert isinstance(gauges, EngineGauges)
