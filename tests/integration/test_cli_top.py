"""`roundhouse top` against real routers, in a real terminal and without one."""

import asyncio
import contextlib
import itertools
import json
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from router.api.access.auth import hash_key
from tests.support.cli_helpers import run_cli
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.terminal import TerminalCommand
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEY: Final = "admin-key-of-a-test"
ADMIN: Final = f'[auth]\nadmin_keys = ["{hash_key(KEY.encode())}"]\n'
ENV: Final = {"ROUNDHOUSE_ADMIN_KEY": KEY}


@pytest.fixture
def key(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    return file


@pytest.fixture
async def served(make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet) -> Any:
    async def start(rest: str = ADMIN) -> RouterServer:
        return await make_router(router_config(redis_server.url, engines.as_config(), rest=rest))

    return start


async def test_without_a_terminal_it_prints_once(served: Any, key: Path) -> None:
    router = await served()
    prompts = itertools.count()

    async def printed() -> str | None:  # a router publishes requests only while somebody watches
        await router.chat(f"The sea {next(prompts)}?")
        result = await run_cli("top", "--url", router.url, "--key-file", key)
        assert (result.code, result.stderr) == (0, "")
        return result.stdout if " MISS " in result.stdout else None

    text = await eventually(printed)
    assert "\x1b" not in text
    for name in ("llama-chat", "llama-code", "mistral", "Redis ", "hour", " 200 "):
        assert name in text
    assert KEY not in text


async def test_what_is_wrong_is_shown_in_words(make_router: MakeRouter, own_redis: RedisServer, key: Path) -> None:
    await own_redis.start()
    gone = {"gone": ("llama", "any", f"http://127.0.0.1:{free_port()}")}
    limited = f'{ADMIN}\n[[tenant]]\nname = "default"\nrequests_per_minute = 1\n'
    router = await make_router(router_config(own_redis.url, gone, rest=limited))
    for _ in range(40):
        await router.chat("The sea?")

    async def printed() -> Any:
        result = await run_cli("top", "--url", router.url, "--key-file", key)
        return result if "is being limited" in result.stdout else None

    text = (await eventually(printed)).stdout
    assert "no engine of llama is in service: only hits are served\n" in text
    assert re.search(r"engine gone is down since [0-9:]{8} UTC: connection refused", text)
    assert re.search(r"tenant default is being limited: \d\d refused in 5 minutes, most by requests_limit\n", text)


async def test_the_documents_are_printed_as_json(served: Any, key: Path) -> None:
    router = await served()
    result = await run_cli("top", "--url", router.url, "--key-file", key, "--json")
    documents = json.loads(result.stdout)
    assert [engine["name"] for engine in documents["status"]["engines"]] == ["llama-chat", "llama-code", "mistral"]
    assert len(documents["history"]["minutes"]) == 60
    assert documents["requests"] == {"requests": [], "all_routers": True}


async def test_a_wrong_key_or_none_is_an_error_that_repeats_no_key(served: Any, tmp_path: Path) -> None:
    router = await served()
    wrong = tmp_path / "wrong"
    wrong.write_text("sk-wrong")
    for arguments in (("--key-file", wrong), ()):
        result = await run_cli("top", "--url", router.url, *arguments)
        assert (result.code, result.stdout) == (1, "")
        assert result.stderr.startswith(f"roundhouse: {router.url}: ")
        assert "ROUNDHOUSE_ADMIN_KEY" in result.stderr
        assert "sk-wrong" not in result.stderr


async def test_a_router_without_admin_keys_says_what_is_missing(served: Any, key: Path) -> None:
    router = await served("")
    result = await run_cli("top", "--url", router.url, "--key-file", key)
    assert result.code == 1
    assert "the configuration has no auth.admin_keys" in result.stderr


async def test_a_router_that_is_down_is_an_error_without_a_terminal(tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.toml"
    port = free_port()
    config.write_text(
        f'[router]\nhost = "0.0.0.0"\nport = {port}\n[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://e"\n'
    )
    result = await run_cli("top", "-c", config, "--once")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == f"roundhouse: http://127.0.0.1:{port} does not answer (ConnectError)\n"


@pytest.mark.parametrize("url", ["ftp://x", "http://user:pw@x:1", "127.0.0.1:8080", "http://x\n:1"])
async def test_an_invalid_url_is_a_usage_error(url: str) -> None:
    result = await run_cli("top", "--url", url)
    assert result.code == 2
    assert "pw" not in result.stderr


@pytest.mark.parametrize("content", ["", "two words", "ä", "x" * 5000])
async def test_an_invalid_key_file_is_a_usage_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    result = await run_cli("top", "--url", "http://127.0.0.1:1", "--key-file", file)
    assert result.code == 2
    assert result.stderr.startswith("roundhouse: --key-file: expected one key")


async def test_another_server_is_told_apart_from_a_router(engines: EngineSet) -> None:
    result = await run_cli("top", "--url", engines.chat.url)
    assert result.code == 1
    assert "has no status; it is not a router" in result.stderr


@pytest.mark.parametrize("size", [20, 9 << 20])
async def test_an_answer_that_is_no_status_is_an_error(size: int) -> None:
    body = b"<html>".ljust(size, b"x")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):  # the command reads no more than it wants
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        result = await run_cli("top", "--url", url)
    assert result.code == 1
    assert ("is not the status of a router" if size == 20 else "more than 8 MiB") in result.stderr


# -- in a terminal ----------------------------------------------------------------------------------------------------


async def test_it_is_live_and_q_restores_the_terminal(served: Any) -> None:
    router = await served()
    async with TerminalCommand("top", "--url", router.url, "--interval", "0.5", env=ENV) as terminal:
        await terminal.shows("llama-chat")
        # A router publishes requests a second after somebody has begun to watch.
        prompts = itertools.count()

        async def miss_shown() -> bool:
            await router.chat(f"The sea {next(prompts)}?")
            return " MISS " in terminal.text

        await eventually(miss_shown)
        await router.chat("The sea 0?")
        await terminal.shows(" HIT ")
        terminal.press(b"q")
        assert await terminal.exit_code() == 0
        await eventually(lambda: terminal.is_restored)
        assert KEY not in terminal.output


async def test_a_resize_is_followed_at_once_and_ctrl_c_restores_the_terminal(served: Any) -> None:
    router = await served()
    async with TerminalCommand("top", "--url", router.url, "--interval", "3600", env=ENV) as terminal:
        await terminal.shows("llama-chat")
        assert "restarts" not in terminal.text
        terminal.resize(200, 50)
        terminal.send_signal(signal.SIGWINCH)
        await terminal.shows("restarts")
        terminal.send_signal(signal.SIGINT)  # by the kernel, if it is the terminal's controlling session
        assert await terminal.exit_code() == 0
        await eventually(lambda: terminal.is_restored)


async def test_a_router_that_is_down_is_asked_again(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    text = router_config(redis_server.url, engines.as_config(), rest=ADMIN)
    async with RouterServer(text) as router:
        terminal = TerminalCommand("top", "--url", router.url, "--interval", "0.5", env=ENV, size=(120, 24))
        await terminal.__aenter__()
        await terminal.shows("llama-chat")
    try:
        await terminal.shows("does not answer (ConnectError); trying again; as of")
        seen = len(terminal.text)
        await terminal.shows("llama-chat", after=seen)
        terminal.press(b"q")
        assert await terminal.exit_code() == 0
    finally:
        await terminal.__aexit__(None, None, None)


async def test_the_key_is_asked_for_and_not_shown(served: Any) -> None:
    router = await served()
    async with TerminalCommand("top", "--url", router.url) as terminal:
        await terminal.shows("Admin key: ")
        terminal.press(f"{KEY}\n".encode())
        await terminal.shows("llama-chat")
        terminal.press(b"q")
        assert await terminal.exit_code() == 0
        assert KEY not in terminal.output
