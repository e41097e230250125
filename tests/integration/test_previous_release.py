"""Two versions over one Redis: this router answers from the entries that the previous release wrote."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from router.store.codec import FORMAT_VERSION
from tests.support.cli_helpers import run_cli
from tests.support.paths import ROOT
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOLDER = ROOT / "tests" / "data" / "previous_release"
REQUESTS: list[dict[str, Any]] = json.loads((FOLDER / "requests.json").read_text())

# Its engines do not answer, so whatever is no hit fails.
CONFIG = """
[cache]
url = "{url}"
timeout = "2500ms"

[[model]]
name = "llama"
revision = "1"

[[model]]
name = "embed"

[[engine]]
name = "a"
model = "llama"
url = "http://127.0.0.1:1"

[[engine]]
name = "e"
model = "embed"
url = "http://127.0.0.1:2"
"""


def entries() -> list[dict[str, Any]]:
    """The exported entries, as if they had been written a minute ago."""
    exported = [json.loads(line) for line in (FOLDER / "entries.jsonl").read_text().splitlines()]
    shift = time.time() - 60 - max(float(entry["fields"]["created"]) for entry in exported)
    for entry in exported:
        entry["expires"] += shift
        entry["fields"]["created"] = f"{float(entry['fields']['created']) + shift:.3f}"
    return exported


async def test_every_request_that_the_previous_release_answered_is_a_hit(
    redis_server: RedisServer, redis: Any, make_router: MakeRouter, tmp_path: Path
) -> None:
    config = tmp_path / "roundhouse.toml"
    config.write_text(CONFIG.format(url=redis_server.url))
    export = tmp_path / "entries.jsonl"
    export.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries()))
    result = await run_cli("cache", "import", export, "--config", config)
    assert result.code == 0, result.stderr

    router = await make_router(config.read_text())
    answers = [await router.post(request["path"], request["body"]) for request in REQUESTS]
    assert [(answer.status_code, answer.headers.get("x-cache")) for answer in answers] == [(200, "HIT")] * len(REQUESTS)


async def test_the_entries_are_of_the_format_that_this_release_writes() -> None:
    """If a release changes the format, this fails: then the changelog and docs/operating.md have to say so."""
    assert {entry["fields"]["format"] for entry in entries()} == {FORMAT_VERSION.decode()}
