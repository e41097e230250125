"""`roundhouse batch` against a server that answers as a router does."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from router.commands.batch.router_access import KEY_VARIABLE
from tests.support.cli_helpers import CommandResult, run_cli, run_cli_process
from tests.support.fake_batches import BATCH_ID, FakeBatches, batch_state, refusal
from tests.support.ports import free_port
from tests.support.scripted_engine import Response
from tests.support.terminal import TerminalCommand
from tests.support.waiting import TEST_TIMEOUT, eventually

REQUESTS: Final = b'{"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"input": "x"}}\n'
ANSWERS: Final = b'{"custom_id": "1"}\n'
RUNNING: Final = batch_state("in_progress", 2, 1)
COMPLETED: Final = batch_state("completed", 2, 2, output_file_id="file-out")
FILES: Final = {"file-out": ANSWERS, "file-err": b'{"custom_id": "2"}\n'}


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    file = tmp_path / "in.jsonl"
    file.write_bytes(REQUESTS)
    return file


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


async def run_batch(fake: FakeBatches, *arguments: object) -> CommandResult:
    return await run_cli("batch", "run", *arguments, "--url", fake.url)


# -- run --------------------------------------------------------------------------------------------------------------


async def test_run_sends_the_file_waits_and_fetches_the_answers(requests: Path, out: Path) -> None:
    async with FakeBatches(batch_state("validating"), RUNNING, COMPLETED, files=FILES).serving() as fake:
        result = await run_batch(fake, requests, "--out", out)
        assert (result.code, result.stdout) == (0, "")
        assert out.read_bytes() == ANSWERS
        assert fake.uploads == [("in.jsonl", REQUESTS)]
        assert fake.created == [{"input_file_id": "file-in", "endpoint": "/v1/embeddings", "completion_window": "24h"}]
    lines = result.stderr.splitlines()
    assert lines[0] == "sending in.jsonl"
    assert "batch_1: 1 of 2 lines" in lines
    assert "2 of 2 lines answered" in lines[-1]


async def test_what_the_batch_is_to_be_comes_from_the_options(requests: Path, out: Path) -> None:
    options = [
        "--endpoint", "/v1/chat/completions", "--window", "2h", "--metadata", "a=b", "--cache-control", "no-store",
    ]  # fmt: skip
    async with FakeBatches(COMPLETED, files=FILES).serving() as fake:
        assert (await run_batch(fake, requests, "--out", out, *options)).code == 0
        assert fake.created == [{
            "input_file_id": "file-in", "endpoint": "/v1/chat/completions", "completion_window": "2h",
            "metadata": {"a": "b", "cache_control": "no-store"},
        }]  # fmt: skip


async def test_failed_lines_are_fetched_apart_and_have_an_exit_code(requests: Path, out: Path, tmp_path: Path) -> None:
    ended = batch_state("completed", 2, 1, 1, output_file_id="file-out", error_file_id="file-err")
    async with FakeBatches(ended, files=FILES).serving() as fake:
        without = await run_batch(fake, requests, "--out", out)
        assert without.code == 3
        assert f"to fetch the errors: roundhouse batch run --wait {BATCH_ID} --out {out}" in without.stderr
        errors = tmp_path / "err.jsonl"
        assert (await run_batch(fake, requests, "--out", out, "--errors", errors)).code == 3
        assert errors.read_bytes() == FILES["file-err"]


async def test_a_batch_that_fails_says_why(requests: Path, out: Path) -> None:
    mistake = {"code": "invalid_json_line", "message": "The line is not a JSON object.", "line": 7}
    failed = batch_state("failed", errors={"object": "list", "data": [mistake]})
    async with FakeBatches(failed).serving() as fake:
        result = await run_batch(fake, requests, "--out", out)
    assert result.code == 4
    assert result.stderr.endswith("line 7: The line is not a JSON object.\n")
    assert out.read_bytes() == b""


async def test_only_store_fetches_nothing(requests: Path) -> None:
    async with FakeBatches(COMPLETED).serving() as fake:
        assert (await run_batch(fake, requests, "--only-store")).code == 0
        assert not [asked for asked in fake.asked if asked.endswith("content")]


async def test_wait_comes_back_to_a_batch(out: Path) -> None:
    async with FakeBatches(RUNNING, COMPLETED, files=FILES).serving() as fake:
        assert (await run_batch(fake, "--wait", BATCH_ID, "--out", out)).code == 0
        assert fake.created == []
    assert out.read_bytes() == ANSWERS


async def test_json_is_the_batch_at_its_end_with_all_that_the_router_says(requests: Path, out: Path) -> None:
    later = COMPLETED | {"field_of_a_later_version": [1]}
    async with FakeBatches(RUNNING, later, files=FILES).serving() as fake:
        assert (await run_batch(fake, requests, "--out", out, "--json")).json() == later


async def test_answers_may_go_to_standard_output(requests: Path) -> None:
    async with FakeBatches(COMPLETED, files=FILES).serving() as fake:
        result = await run_batch(fake, requests, "--out", "-", "--json")
    assert (result.code, result.stdout) == (0, ANSWERS.decode())


async def test_a_router_that_restarts_meanwhile_is_waited_for(requests: Path, out: Path) -> None:
    states = (RUNNING, refusal(503, "redis_down", "Batches need Redis."), COMPLETED)
    broken = Response([b"half of "], end="close")
    async with FakeBatches(*states, files={"file-out": [broken, ANSWERS]}).serving() as fake:
        result = await run_batch(fake, requests, "--out", out)
    assert result.code == 0
    assert out.read_bytes() == ANSWERS
    assert f"{fake.url} answers with status 503: Batches need Redis.; waiting for it\nit answers again" in result.stderr


async def test_a_batch_that_is_refused_leaves_no_file_at_the_router(requests: Path, out: Path) -> None:
    async with FakeBatches(COMPLETED).serving() as fake:
        fake.answers["POST /v1/batches"] = refusal(400, "invalid_endpoint", "`endpoint` must be another.")
        result = await run_batch(fake, requests, "--out", out)
        assert fake.asked[-1] == "DELETE /v1/files/file-in"
    assert result.code == 1
    assert result.stderr.endswith(f"roundhouse: {fake.url} answers with status 400: `endpoint` must be another.\n")


async def test_after_an_error_it_is_said_how_to_come_back(requests: Path, out: Path) -> None:
    async with FakeBatches(RUNNING, refusal(404, "batch_not_found", "There is no batch.")).serving() as fake:
        result = await run_batch(fake, requests, "--out", out, "--json")
    assert result.code == 1
    assert result.json() == RUNNING
    assert "There is no batch.; to come back: roundhouse batch run --wait batch_1 --out" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "give a file of requests, or --wait"),
        (["{file}", "--wait", "batch_1"], "give a file of requests, or --wait"),
        (["{file}"], "give --out FILE for the answers, or --only-store"),
        (["{file}", "--out", "x", "--only-store"], "give --out FILE for the answers, or --only-store"),
        (["{file}", "--out", "{file}"], "it would replace"),
        (["{file}", "--only-store", "--window", "1y"], "--window 1y: expected a duration"),
        (["missing.jsonl", "--only-store"], "missing.jsonl: No such file or directory"),
    ],
)
async def test_wrong_usage_is_found_before_anything_is_sent(arguments: list[str], error: str, requests: Path) -> None:
    async with FakeBatches(COMPLETED).serving() as fake:
        result = await run_batch(fake, *(each.format(file=requests) for each in arguments))
        assert (result.code, fake.asked) == (2, [])
    assert error in result.stderr


# -- the key ----------------------------------------------------------------------------------------------------------


async def test_the_key_comes_from_the_file_or_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("rh-of-the-file\n")
    monkeypatch.setenv(KEY_VARIABLE, "rh-of-the-variable")
    async with FakeBatches(RUNNING).serving() as fake:
        for arguments, key in (("--key-file", file), "rh-of-the-file"), ((), "rh-of-the-variable"):
            fake.keys.clear()
            assert (await run_cli("batch", "show", BATCH_ID, "--url", f"{fake.url}/v1", *arguments)).code == 0
            assert fake.keys == {f"Bearer {key}"}


async def test_a_key_that_is_refused_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "rh-secret")
    async with FakeBatches(refusal(401, "invalid_api_key", "The API key is not valid.")).serving() as fake:
        result = await run_cli("batch", "show", BATCH_ID, "--url", fake.url)
    message = f"The API key is not valid. Set {KEY_VARIABLE} or --key-file."
    assert (result.code, result.stderr) == (1, f"roundhouse: {fake.url}: {message}\n")


# -- the others -------------------------------------------------------------------------------------------------------


async def test_ls_follows_the_pages() -> None:
    async with FakeBatches().serving() as fake:
        fake.pages = [[COMPLETED, RUNNING | {"id": "page_0"}], [RUNNING | {"id": "page_1", "waiting_for": "a budget"}]]
        table = (await run_cli("batch", "ls", "--url", fake.url)).stdout.splitlines()
        assert [line.split()[:2] for line in table[1:]] == [
            [BATCH_ID, "completed"], ["page_0", "in_progress"], ["page_1", "in_progress"],
        ]  # fmt: skip
        assert table[3].endswith("a budget")
        as_json = await run_cli("batch", "ls", "--url", fake.url, "--json")
        assert as_json.json_lines() == [*fake.pages[0], *fake.pages[1]]


async def test_without_batches_ls_prints_nothing() -> None:
    async with FakeBatches().serving() as fake:
        fake.pages = [[]]
        assert await run_cli("batch", "ls", "--url", fake.url) == CommandResult(0, "", "")


async def test_show_prints_what_is_known() -> None:
    async with FakeBatches(RUNNING).serving() as fake:
        assert "progress: 1 of 2 lines\n" in (await run_cli("batch", "show", BATCH_ID, "--url", fake.url)).stdout
        assert (await run_cli("batch", "show", BATCH_ID, "--url", fake.url, "--json")).json() == RUNNING


@pytest.mark.parametrize(
    ("action", "state"), [("cancel", "cancelling"), ("pause", "in_progress, paused"), ("resume", "in_progress")]
)
async def test_a_batch_is_changed_and_its_state_printed(action: str, state: str) -> None:
    async with FakeBatches().serving() as fake:
        result = await run_cli("batch", action, BATCH_ID, "--url", fake.url)
        assert result == CommandResult(0, f"{BATCH_ID} is {state}\n", "")
        as_json = (await run_cli("batch", action, BATCH_ID, "--url", fake.url, "--json")).json()
        assert as_json["paused"] == (action == "pause")
        assert fake.asked[0] == f"POST /v1/batches/{BATCH_ID}/{action}"


@pytest.mark.parametrize("command", [("ls",), ("show", "x"), ("cancel", "x")])
async def test_no_router_is_one_line(command: tuple[str, ...]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = await run_cli("batch", *command, "--url", url)
    assert result == CommandResult(1, "", f"roundhouse: {url} does not answer (ConnectError)\n")


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"id": 1}', b'{"id": "x", "status": 5}'])
async def test_a_server_that_is_no_router_is_one_line(answer: bytes) -> None:
    async with FakeBatches(Response(answer)).serving() as fake:
        result = await run_cli("batch", "show", "x", "--url", fake.url)
    assert (result.code, result.stdout) == (1, "")
    assert "does not answer as a router of this version" in result.stderr


async def test_a_server_without_batches_says_so() -> None:
    async with FakeBatches(Response(b"Not Found", 404)).serving() as fake:
        result = await run_cli("batch", "show", "x", "--url", fake.url)
    assert result.stderr == f"roundhouse: {fake.url} has no batches; it is not a router, or an older version\n"


async def test_an_id_is_no_path() -> None:
    async with FakeBatches(RUNNING).serving() as fake:
        await run_cli("batch", "show", "../files?x", "--url", fake.url)
        assert fake.asked == ["GET /v1/batches/..%2Ffiles%3Fx"]


# -- processes --------------------------------------------------------------------------------------------------------


async def test_ctrl_c_leaves_the_batch_running_and_says_how_to_come_back(requests: Path, out: Path) -> None:
    async with FakeBatches(RUNNING).serving() as fake:
        process = await start("batch", "run", requests, "--out", out, "--url", fake.url)
        await fake.was_looked_at.wait()
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TEST_TIMEOUT):
            _, err = await process.communicate()
        assert process.returncode == 130
        back = f"roundhouse batch run --wait {BATCH_ID} --out {out} --url {fake.url}"
        assert f"{BATCH_ID} keeps running. To come back: {back}\n" in err.decode()
        assert not [asked for asked in fake.asked if asked.endswith("cancel")]
    assert not out.exists()


async def test_ctrl_c_while_the_batch_is_asked_for_says_that_it_may_have_begun(requests: Path, out: Path) -> None:
    async with FakeBatches(RUNNING).serving() as fake:
        fake.answers["POST /v1/batches"] = Response([b"{"], end="hold")
        process = await start("batch", "run", requests, "--out", out, "--url", fake.url)
        await eventually(lambda: "POST /v1/batches" in fake.asked)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TEST_TIMEOUT):
            _, err = await process.communicate()
    assert process.returncode == 130
    assert err.decode().endswith("`roundhouse batch ls` shows whether the batch has begun\n")


async def start(*arguments: object) -> Any:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *map(str, arguments), stderr=asyncio.subprocess.PIPE
    )


async def test_a_terminal_has_bars(requests: Path, out: Path) -> None:
    waits = batch_state("in_progress", 2, 1, waiting_for="[bold]room")
    async with (
        FakeBatches(waits, files=FILES).serving() as fake,
        TerminalCommand("batch", "run", requests, "--out", out, "--url", fake.url, size=(140, 24)) as command,
    ):
        await command.shows("batch_1 has begun; Ctrl-C leaves it running")
        await command.shows("1 of 2 lines")
        await command.shows("waiting: [bold]room")
        fake.states = [COMPLETED]
        await command.shows("2 of 2 lines answered")
        assert await command.exit_code() == 0
    assert out.read_bytes() == ANSWERS


async def test_a_large_file_is_sent_and_fetched_in_pieces(tmp_path: Path, out: Path) -> None:
    line = REQUESTS[:-2] + b" " * 100_000 + b"}\n"
    large = tmp_path / "large.jsonl"
    large.write_bytes(line * 50)
    async with FakeBatches(COMPLETED, files={"file-out": line * 50}).serving() as fake:
        assert (await run_cli_process("batch", "run", large, "--out", out, "--url", fake.url)).code == 0
        assert fake.uploads == [("large.jsonl", large.read_bytes())]
    assert out.read_bytes() == large.read_bytes()
