"""Files and batches as programs with OpenAI's own libraries use them, which know only the address and a key.

`make test-clients` installs the libraries and runs this.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.client_programs import CLIENTS_NODE, python_command, run_client
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, router_config

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(CLIENTS_NODE is None, reason="make test-clients installs the libraries"),
]

PROGRAMS: Final = ROOT / "tests" / "data" / "clients"
EXPECTED: Final[dict[str, Any]] = {
    "file": ["requests.jsonl", "batch", "processed"],
    "expires": 3600,
    "metadata": {"description": "nightly"},
    "answers": ["land", "sea"],
    "errors": [400],
    "is_whole": True,
    "cancelled": ["cancelled"] * 4,
    "all_listed": True,
    "files": True,
    "deleted": True,
    "missing": "file_not_found",
}


def command(program: str) -> list[str]:
    code = (PROGRAMS / program).read_text(encoding="utf-8")
    return ["node", "--input-type=module", "-e", code] if program.endswith(".mjs") else python_command(code)


@pytest.mark.parametrize("program", ["batches.py", "batches_async.py", "batches.mjs"])
async def test_a_program_with_openais_library_runs_cancels_and_lists_batches_and_files(
    redis_server: RedisServer, redis: Any, engines: EngineSet, make_router: MakeRouter, tmp_path: Path, program: str
) -> None:
    # Lines wait while the engine of their model is down, so these batches run until they are cancelled.
    tables = engines.as_config() | {"mistral": ("mistral", "any", f"http://127.0.0.1:{free_port()}")}
    rest = f'[batch]\nfolder = "{tmp_path / "files"}"\n'
    router = await make_router(router_config(redis_server.url, tables, rest=rest))
    address = {"OPENAI_BASE_URL": f"{router.url}/v1", "OPENAI_API_KEY": "none"}
    seen = json.loads(await run_client(command(program), tmp_path, **address))
    counts = seen.pop("counts")
    assert (counts["total"], counts["completed"], counts["failed"]) == (3, 2, 1)
    assert seen == EXPECTED
