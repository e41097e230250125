"""Every example of docs/clients.md, run as it stands: its first request is a miss, its second a hit.

An example whose package is not installed is skipped. `make test-clients` installs them all, and then none may be.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from router.api.access.auth import hash_key
from tests.support.client_programs import python_command, run_client
from tests.support.paths import ROOT
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, router_config

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE_URL: Final = "http://127.0.0.1:8080"
TENANT: Final = f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"sk-acme")}"]\n'
BETWEEN_RUNS: Final = "--- the same again ---"


class Example(NamedTuple):
    name: str
    language: str
    code: str


def examples() -> Iterator[Example]:
    heading = ""
    counts: dict[str, int] = {}
    page = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
    for match in re.finditer(r"^## ([^\n]+)$|^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if match[1] is not None:
            heading = match[1]
            continue
        counts[heading] = counts.get(heading, 0) + 1
        yield Example(f"{heading}, {counts[heading]}", match[2], match[3])


EXAMPLES: Final = list(examples())


def commands(example: Example, code: str) -> list[list[str]]:
    """Two runs of the example; two in one process for Python, where most of the time is for imports."""
    match example.language:
        case "sh":
            return [["bash", "-c", code]] * 2
        case "python":
            twice = f"for _ in range(2):\n    exec({code!r}, {{}})\n    print({BETWEEN_RUNS!r})\n"
            return [python_command(twice)]
        case "js":
            return [["node", "--input-type=module", "-e", code]] * 2
    raise AssertionError(f"{example.name}: nothing runs {example.language}")


async def run_twice(example: Example, url: str, folder: Path) -> list[str]:
    """The output of each run. Skips the test if a program or a package is missing."""
    outputs = [
        await run_client(command, folder) for command in commands(example, example.code.replace(PAGE_URL, url))
    ]  # fmt: skip
    return outputs[0].split(BETWEEN_RUNS)[:2] if len(outputs) == 1 else outputs


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
async def test_an_example_of_the_page_misses_and_then_hits(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter, tmp_path: Path, example: Example
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=TENANT))
    first, second = [output.strip() for output in await run_twice(example, router.url, tmp_path)]
    statuses = [re.findall(r"\b(?:MISS|HIT|BYPASS|COALESCED|STALE)\b", output) for output in (first, second)]
    assert statuses == [["MISS"], ["HIT"]]
    assert first.replace("MISS", "HIT") == second, "the answer is the same"
    (key,) = [key async for key in redis.scan_iter("rh:1:acme:*")]
    if "X-Cache-TTL" in example.code:
        assert 0 < await redis.ttl(key) <= 3600
    assert ("documents" in example.code) is (key.split(":")[5] != "0" * 16)


async def test_the_page_has_an_example_for_each_client() -> None:
    seen = {example.name.rpartition(",")[0] for example in EXAMPLES}
    assert seen == {
        "curl", "OpenAI for Python", "OpenAI for JavaScript", "LangChain", "LlamaIndex", "Vercel's AI SDK",
        "Anthropic's SDKs",
    }  # fmt: skip
