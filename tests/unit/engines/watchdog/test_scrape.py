"""Reading an engine's metrics: a page of vLLM, the simulator's, and pages that cannot be read."""

import httpx

from engines.watchdog.scrape import Scrape, parse_scrape, scrape_engine
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.simulated_engine import SimulatedEngine
from tests.support.waiting import TEST_TIMEOUT

VLLM_PAGE = (ROOT / "tests/data/captures/metrics.txt").read_text()
CHAT = {"model": "simulated", "messages": [{"role": "user", "content": "The sea?"}], "max_tokens": 7}


def test_every_figure_is_found_on_a_page_of_vllm() -> None:
    # The captured page has no values.
    page = "\n".join(line if line.startswith("#") else f"{line} 2" for line in VLLM_PAGE.splitlines())
    found = parse_scrape(page, 1.0)
    assert [name for name in found.__struct_fields__ if getattr(found, name) is None] == []


def test_engine_cores_behind_one_address_are_summed_and_the_fullest_cache_counts() -> None:
    tokens = 'vllm:generation_tokens_total{engine="0"} 6\nvllm:generation_tokens_total{engine="1"} 7\n'
    usage = 'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
    assert parse_scrape(tokens + usage, 3.0) == Scrape(at=3.0, healthy=True, generated=13, kv_cache_usage=0.2)


def test_without_sources_all_prompt_tokens_count_as_computed() -> None:
    page = 'vllm:prompt_tokens_total{engine="0"} 9\n'
    assert parse_scrape(page, 0.0).prefilled == 9
    computed = 'vllm:prompt_tokens_by_source_total{source="local_compute"} 4\n'
    cached = 'vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 5\n'
    assert parse_scrape(page + computed + cached, 0.0).prefilled == 4


async def test_a_running_engine_is_read_and_one_that_is_down_is_unhealthy() -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=TEST_TIMEOUT) as client:
        async with SimulatedEngine() as engine:
            (await client.post(f"{engine.url}/v1/chat/completions", json=CHAT)).raise_for_status()
            found = await scrape_engine(client, engine.url, lambda: 5.0)
            assert (found.at, found.healthy, found.generated, found.finished, found.failed) == (5.0, True, 7, 1, 0)
            await engine.set_faults({"fault": "health", "code": 503})
            assert await scrape_engine(client, engine.url, lambda: 6.0) == Scrape(at=6.0, healthy=False)
        gone = await scrape_engine(client, f"http://127.0.0.1:{free_port()}", lambda: 7.0)
        assert gone == Scrape(at=7.0, healthy=False)
