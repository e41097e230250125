"""The commands `serve`, `check` and `classify`, as a user runs them."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.net.server.request_parser import MAX_HEAD_BYTES
from tests.support.cli_helpers import run_cli
from tests.support.configurations import MINIMAL
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess, http_client
from tests.support.router_server import EngineSet, chat_body, router_config
from tests.support.waiting import TEST_TIMEOUT, next_line

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture
def serve(tmp_path: Path, redis: Any) -> Iterator[Any]:
    started: list[RouterProcess] = []

    def start(text: str) -> RouterProcess:
        started.append(RouterProcess(tmp_path, text))
        started[-1].start()
        return started[-1]

    yield start
    for served in started:
        served.kill()


# -- serve ------------------------------------------------------------------------------------------------------------


async def test_serve_answers_refuses_a_head_over_the_limit_and_exits_cleanly_on_sigterm(
    serve: Any, config: str
) -> None:
    served = serve(config.replace("[router]", '[router]\nlog_format = "json"'))
    await served.wait_until_ready()
    async with http_client(served.url) as http:
        answers = [await http.post("/v1/chat/completions", json=chat_body("The sea?")) for _ in range(2)]
    assert [answer.headers["x-cache"] for answer in answers] == ["MISS", "HIT"]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    # Only one byte too many: with more unread data, the server would reset the connection.
    writer.write(b"GET /health HTTP/1.1\r\nx-filler: ".ljust(MAX_HEAD_BYTES + 1, b"y"))
    assert (await next_line(reader)).startswith(b"HTTP/1.1 431 ")
    writer.close()
    served.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(served.process.wait, TEST_TIMEOUT) in (0, -signal.SIGTERM)
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    assert [line["cache"] for line in lines if "cache" in line] == ["MISS", "HIT"]


async def test_a_port_in_use_is_one_clear_line(config: str, tmp_path: Path, engines: EngineSet) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(config.replace("[router]", f"[router]\nport = {engines.chat.port}"))
    result = await run_cli("serve", "-c", path)
    assert result.code == 1
    assert result.stderr.splitlines() == [
        (
            f"roundhouse: {path}: router.port: port {engines.chat.port} of 127.0.0.1: is used by another process; "
            f"choose another, or end that process: ss -ltnp 'sport = :{engines.chat.port}'"
        )
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("serve", "[router", "not valid TOML"),
        ("check", f"[routr]\n{MINIMAL}", "routr: no such setting; did you mean router?"),
        ("up", f"[cache]\nttl = 'soon'\n{MINIMAL}", "cache.ttl"),
        ("serve", "[[model]]\nname = 'a'", "model[0].name: 'a' has no engine"),
        ("check", f"[cache]\nurl = '${{NOWHERE}}'\n{MINIMAL}", "cache.url: environment variable NOWHERE is not set"),
        ("up", None, "No such file"),
    ],
)
async def test_an_invalid_configuration_is_one_clear_line(
    tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    path = tmp_path / "roundhouse.toml"
    if text is not None:
        path.write_text(text)
    result = await run_cli(name, "-c", path)
    assert result.code == 2
    (line,) = result.stderr.splitlines()
    assert re.match(rf"roundhouse: {re.escape(str(path))}(:\d+)?: ", line)
    assert message in line
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["serve", "check", "up"])
async def test_all_mistakes_of_a_configuration_are_printed_each_on_a_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(f"[router]\nprot = 1\n[auth]\nmode = 'key'\n[cache]\nttl = '0s'\n{MINIMAL}")
    result = await run_cli(name, "-c", path)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.splitlines() == [
        f"roundhouse: {path}:2: router.prot: no such setting; did you mean port?",
        f"roundhouse: {path}:4: auth.mode: 'key' is none of open, keys, header",
        f"roundhouse: {path}:6: cache.ttl: '0s' is too short; the time to live of an entry is at least 1s",
    ]


async def test_the_configuration_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "other.toml"
    monkeypatch.setenv("ROUNDHOUSE_CONFIG", str(path))
    result = await run_cli("check")
    assert result.stderr == f"roundhouse: {path}: No such file or directory\n"


# -- check ------------------------------------------------------------------------------------------------------------


async def test_check_reports_that_everything_answers(config: str, tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(config)
    result = await run_cli("check", "-c", path)
    assert (result.code, result.stderr) == (0, "")
    assert "FAIL" not in result.stdout
    assert "ok    engine llama-chat at " in result.stdout
    assert "ok    redis: version " in result.stdout


async def test_check_reports_what_does_not_answer(
    redis_server: RedisServer, engines: EngineSet, tmp_path: Path
) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    table = {
        "gone": ("llama", "any", nobody),
        "other": ("llama", "any", engines.mistral.url),
        "well": ("llama", "any", engines.chat.url),
    }
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(f"unix://{tmp_path}/none.sock", table))
    result = await run_cli("check", "-c", path, "--json")
    assert result.code == 1
    report = result.json()
    assert report["ok"] is False
    findings = {finding["what"].split(" at ")[0]: finding for finding in report["findings"]}
    assert {name: found["ok"] for name, found in findings.items() if name.partition(" ")[0] in ("redis", "engine")} == {
        "redis": False,
        "engine gone": False,
        "engine other": False,
        "engine well": True,
    }
    assert findings["engine gone"]["note"] == "nothing listens there"
    assert "but not 'meta-llama/Llama-Simulated'" in findings["engine other"]["note"]


async def test_check_reports_an_unknown_option_of_the_address(
    redis_server: RedisServer, engines: EngineSet, tmp_path: Path
) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(f"{redis_server.url}?foo=bar", engines.as_config()))
    result = await run_cli("check", "-c", path)
    assert (result.code, result.stdout) == (2, "")
    assert "cache.url: the known options are db, each once" in result.stderr


# -- classify ---------------------------------------------------------------------------------------------------------

CODE, CHAT = "Write a Python function that reverses a list.", "What should I cook for dinner tonight?"


async def test_classify_reads_json_lines_and_writes_json_lines() -> None:
    lines = "\n".join(json.dumps({"prompt": prompt}) for prompt in (CODE, CHAT)) + "\n\n"
    result = await run_cli("classify", "--json", stdin=lines.encode())
    assert (result.code, result.stderr) == (0, "")
    verdicts = result.json_lines()
    assert [verdict["task"] for verdict in verdicts] == ["code", "chat"]
    assert all(0 <= verdict["score"] <= 1 for verdict in verdicts)


async def test_classify_explains_prompts_of_the_command_line() -> None:
    result = await run_cli("classify", CODE, CHAT)
    first, second = result.stdout.splitlines()
    assert first.startswith("code ")
    assert second.startswith("chat ")
    assert CHAT in second


@pytest.mark.parametrize("line", ["nonsense", "{}", "[]", '{"prompt": 1}'])
async def test_classify_names_the_line_that_it_cannot_read(line: str) -> None:
    result = await run_cli("classify", stdin=f"{json.dumps({'prompt': CHAT})}\n{line}".encode())
    assert result.code == 2
    assert result.stderr == 'roundhouse: standard input, line 2: expected a JSON object with a string "prompt"\n'


async def test_the_command_prints_its_version_and_a_usage_error_is_2() -> None:
    result = await run_cli("--version")
    assert (result.code, result.stdout.split()[0]) == (0, "roundhouse")
    assert (await run_cli("no-such-command")).code == 2
