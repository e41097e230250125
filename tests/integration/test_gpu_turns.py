"""`roundhouse up` with two models on one GPU, whose processes take turns, and `roundhouse engines wake` and `sleep`."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.cli_helpers import run_cli
from tests.support.ports import free_port
from tests.support.process_tree import ProcessTree
from tests.support.redis_process import RedisServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

_GPU = '[[gpu]]\nname = "gpu0"\nengines = ["e0", "e1"]\n'


@pytest_asyncio.fixture(loop_scope="session")
async def tree(tmp_path: Path) -> AsyncIterator[ProcessTree]:
    tree = ProcessTree(tmp_path)
    text = tree.config.read_text().replace('served_model = "served"', 'served_model = "served"\nsleep = "process"')
    first, second, third = text.partition('name = "e1"\nmodel = "llama"')
    other = '[[model]]\nname = "other"\n'
    tree.config.write_text(first.replace("[[engine]]", f"{other}[[engine]]", 1) + second.replace("llama", "other")
                           + third + _GPU)  # fmt: skip
    await tree.start()
    yield tree
    await tree.stop()


def ports(tree: ProcessTree) -> list[bool]:
    """Whether a process of e0 runs, and one of e1."""
    argvs = b" ".join(tree.engines())
    return [argvs.count(f"\0--port\0{port}\0".encode()) > 0 for port in engine_ports(tree)]


def engine_ports(tree: ProcessTree) -> list[int]:
    lines = [line for line in tree.config.read_text().splitlines() if line.startswith("url = ")]
    return [int(line.rpartition(":")[2].rstrip('"')) for line in lines]


async def test_processes_take_turns_by_requests_and_by_orders(tree: ProcessTree) -> None:
    assert ports(tree) == [True, False]
    assert (await tree.ask("The sea?")).status_code == 200
    assert (await tree.ask("A function?", model="other")).status_code == 200
    assert ports(tree) == [False, True]
    assert (await tree.ask("The sea?")).headers["x-cache"] == "HIT"
    assert ports(tree) == [False, True]
    code, out, _ = await tree.run("engines", "wake", "e0", "--json")
    assert (code, json.loads(out) | {"seconds": 0}) == (
        0, {"engine": "e0", "gpu": "gpu0", "state": "awake", "seconds": 0, "error": ""}
    )  # fmt: skip
    assert ports(tree) == [True, False]
    code, out, _ = await tree.run("engines", "sleep", "e0")
    assert (code, out.startswith("e0 is asleep after ")) == (0, True)
    assert ports(tree) == [False, False]


async def test_an_order_that_nobody_takes_is_an_error(tmp_path: Path, redis_server: RedisServer) -> None:
    config = tmp_path / "roundhouse.toml"
    engines = "".join(
        f'[[engine]]\nname = "{name}"\nmodel = "m"\nurl = "http://127.0.0.1:{free_port()}"\nsleep = "vllm"\n'
        for name in ("e0", "e1")
    )
    config.write_text(f'[cache]\nurl = "{redis_server.url}"\n[[model]]\nname = "m"\n{engines}{_GPU}')
    refused = await run_cli("engines", "wake", "e0", "--config", str(config))
    assert (refused.code, refused.stderr) == (
        1, "roundhouse: no router takes the order; is one running with this Redis?\n"
    )  # fmt: skip
    unknown = await run_cli("engines", "sleep", "e9", "--config", str(config))
    assert unknown.code == 2
    assert "'e9' takes turns at no GPU; engines of a [[gpu]]: e0, e1" in unknown.stderr
