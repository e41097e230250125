"""Data-parallel ranks of the simulator: each has a prefix cache and a queue of its own."""

import re

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from engines.simulator.app import create_app
from engines.simulator.engine.core import EngineCore
from engines.simulator.engine.ranks import Ranks
from engines.simulator.engine.scheduler import Sequence
from engines.simulator.kv_cache.kv_events import BlockOrigin
from engines.simulator.kv_cache.kv_events_config import KvEventsConfig
from engines.simulator.settings import SimulatorSettings

pytestmark = pytest.mark.asyncio(loop_scope="session")

PROMPT = "The lamp of the harbour was lit. " * 20


class Engine:
    def __init__(self, **settings: object) -> None:
        self.sent: dict[str, list[bytes]] = {}
        self.app: Starlette = create_app(SimulatorSettings("m", **settings), self._open)  # type: ignore[arg-type]  # the test's
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://engine")

    def _open(self, config: KvEventsConfig) -> "list[bytes].append":  # type: ignore[valid-type]  # a bound method
        return self.sent.setdefault(f"{config.endpoint} {config.replay_endpoint}", []).append

    async def ask(self, path: str = "/v1/completions", rank: object = None, **fields: object) -> httpx.Response:
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        said = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
        return await self.http.post(path, json={"model": "m", "max_tokens": 4, **said, **fields}, headers=headers)

    async def metric(self, name: str) -> list[tuple[str, float]]:
        """The samples by rank."""
        page = (await self.http.get("/metrics")).text
        found = re.findall(rf'^vllm:{name}{{.*?engine="(\d+)".*}} (\S+)$', page, re.MULTILINE)
        return [(rank, float(value)) for rank, value in found]


async def test_a_request_goes_to_the_rank_of_its_header_whose_cache_it_finds() -> None:
    engine = Engine(data_parallel_size=2)
    for rank in (1, 1, 0):
        assert (await engine.ask(rank=rank)).status_code == 200
    (_, zero), (_, one) = await engine.metric("prefix_cache_hits_total")
    assert (zero, one > 100) == (0, True)
    assert [rank for rank, _ in await engine.metric("cache_config_info")] == ["0", "1"]


async def test_requests_without_a_rank_take_turns() -> None:
    engine = Engine(data_parallel_size=3)
    for rank in (None, "x", None):
        assert (await engine.ask(rank=rank)).status_code == 200
    assert len({value for _, value in await engine.metric("prompt_tokens_total")}) == 1


async def test_a_request_without_a_rank_goes_to_the_one_with_the_fewest_requests() -> None:
    busy, idle = cores = [EngineCore(SimulatorSettings("m"), lambda: 0.0) for _ in range(2)]
    busy.scheduler.submit(Sequence((1, 2, 3), BlockOrigin(), lambda: None))
    ranks = Ranks(cores)
    assert [ranks.choose({}) for _ in range(3)] == [idle] * 3


@pytest.mark.parametrize(("ranks", "rank"), [(2, 2), (2, -1), (1, 1)])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_rank_that_does_not_exist_is_refused_with_vllms_message(ranks: int, rank: int, path: str) -> None:
    engine = Engine(data_parallel_size=ranks)
    message = f"data_parallel_rank {rank} is out of range [0, {ranks})."
    error = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}
    refused = await engine.ask(path, rank)
    assert (refused.status_code, refused.json()) == (400, error)
    stream = await engine.ask(path, rank, stream=True)
    begin, rest = stream.text.split("\n\n", 1)
    assert (stream.status_code, msgspec.json.decode(begin.removeprefix("data: ")), rest) == (
        200, error, "data: [DONE]\n\n"
    )  # fmt: skip


async def test_the_page_of_metrics_has_each_metric_once_with_the_samples_of_all_ranks() -> None:
    one, two = Engine(), Engine(data_parallel_size=2)
    pages = [(await engine.http.get("/metrics")).text for engine in (one, two)]
    helps = [[line for line in page.splitlines() if line.startswith("# HELP vllm")] for page in pages]
    assert helps[0] == helps[1]
    assert [page.count("vllm:admission_rejections_total{") for page in pages] == [2, 2]
    assert [page.count("vllm:num_requests_running{") for page in pages] == [1, 2]


async def test_each_rank_publishes_its_events_at_a_port_of_its_own_and_a_reset_is_of_all() -> None:
    events = KvEventsConfig(enable_kv_cache_events=True, endpoint="tcp://*:5557", replay_endpoint="tcp://*:5657")
    engine = Engine(data_parallel_size=2, kv_events=events, server_dev_mode=True)
    assert list(engine.sent) == ["tcp://*:5557 tcp://*:5657", "tcp://*:5558 tcp://*:5658"]
    await engine.ask(rank=1)
    zero, one = ([msgspec.msgpack.decode(each) for each in sent] for sent in engine.sent.values())
    assert (zero, {batch[2] for batch in one}) == ([], {1})
    assert (await engine.http.post("/reset_prefix_cache")).json() == {"success": True}
    await engine.ask(rank=1)
    assert await engine.metric("prefix_cache_hits_total") == [("0", 0), ("1", 0)]


async def test_vllm_does_not_start_with_ipc_and_several_ranks() -> None:
    with pytest.raises(ValueError, match="must contain 'inproc' or 'tcp'"):
        Engine(data_parallel_size=2, kv_events=KvEventsConfig(enable_kv_cache_events=True, endpoint="ipc:///kv"))
