"""`roundhouse batch` against a real router and simulated engines."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio

from tests.support.cli_helpers import run_cli
from tests.support.router_server import MakeRouter, RouterServer, chat_body

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHAT: Final = "/v1/chat/completions"


@pytest_asyncio.fixture(loop_scope="session")
async def router(make_router: MakeRouter, config: str, tmp_path: Path) -> RouterServer:
    return await make_router(f'{config}\n[batch]\nfolder = "{tmp_path / "files"}"\n')


def write_requests(file: Path, *bodies: Any) -> Path:
    lines = [{"custom_id": f"n{n}", "method": "POST", "url": CHAT, "body": body} for n, body in enumerate(bodies)]
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return file


def answers(file: Path) -> dict[str, Any]:
    return {line["custom_id"]: line for line in map(json.loads, file.read_text().splitlines())}


async def test_a_file_is_run_and_the_second_run_is_free(router: RouterServer, tmp_path: Path) -> None:
    file = write_requests(
        tmp_path / "in.jsonl", *(chat_body(f"How deep is sea {n} of the command?") for n in range(20))
    )
    out, again = tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    first = await run_cli("batch", "run", file, "--out", out, "--url", router.url, "--json")
    assert first.code == 0, first.stderr
    assert first.json()["request_counts"] == {"total": 20, "completed": 20, "failed": 0, "cached": 0}
    second = await run_cli("batch", "run", file, "--out", again, "--url", router.url)
    assert second.code == 0, second.stderr
    assert second.stderr.endswith(": 20 of 20 lines answered, 20 of them from the cache\n")
    texts = [{id_: line["response"]["body"]["choices"] for id_, line in answers(path).items()} for path in (out, again)]
    assert texts[0] == texts[1]
    assert sorted(texts[0], key=lambda id_: int(id_[1:])) == [f"n{n}" for n in range(20)]
    listed = (await run_cli("batch", "ls", "--url", router.url, "--json")).json_lines()
    assert [batch["status"] for batch in listed] == ["completed"] * 2


async def test_lines_that_fail_are_in_the_file_of_errors(router: RouterServer, tmp_path: Path) -> None:
    file = write_requests(tmp_path / "in.jsonl", chat_body("How salty is the sea?"), chat_body("?", model="unknown"))
    out, errors = tmp_path / "out.jsonl", tmp_path / "err.jsonl"
    result = await run_cli("batch", "run", file, "--out", out, "--errors", errors, "--url", router.url)
    assert result.code == 3, result.stderr
    assert (list(answers(out)), list(answers(errors))) == (["n0"], ["n1"])


async def test_a_file_with_a_line_that_is_no_json_is_refused_with_its_number(
    router: RouterServer, tmp_path: Path
) -> None:
    file = write_requests(tmp_path / "in.jsonl", chat_body("How old is the sea?"))
    file.write_text(f"{file.read_text()}no JSON\n")
    result = await run_cli("batch", "run", file, "--only-store", "--url", router.url)
    assert result.code == 1
    assert "line 2" in result.stderr.lower()
    assert (await run_cli("batch", "ls", "--url", router.url)).stdout == ""


async def test_what_the_router_refuses_is_one_line(router: RouterServer, tmp_path: Path) -> None:
    result = await run_cli("batch", "run", "--wait", "batch_0", "--out", tmp_path / "out", "--url", router.url)
    assert result.code == 1
    assert result.stderr == f"roundhouse: {router.url} answers with status 404: There is no batch 'batch_0'.\n"


async def test_a_router_without_a_folder_says_what_is_missing(make_router: MakeRouter, config: str) -> None:
    router = await make_router(config)
    result = await run_cli("batch", "ls", "--url", router.url)
    assert result.code == 1
    assert "batch.folder" in result.stderr
