"""`roundhouse serve --engine URL`: no configuration file, and the options that replace settings of one."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.discovery import ask
from router.discovery.start import settings_of_engines
from router.settings.serve_options import ServeOptions
from tests.support.cli_helpers import run_cli
from tests.support.first_steps import engine_of, models_page
from tests.support.foreign_script import ForeignScript
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_process import ROUNDHOUSE, START_TIMEOUT, http_client
from tests.support.router_server import chat_body
from tests.support.scripted_engine import served
from tests.support.waiting import TEST_TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


class Served:
    """`roundhouse serve` with options, in a folder without files."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "serve.log"
        argv = [*ROUNDHOUSE, "serve", "--port", str(self.port), *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ROUNDHOUSE_ROUTER_DRAIN": "0", **(env or {})}
        environment["ROUNDHOUSE_CACHE_TIMEOUT"] = "2500ms"  # a busy machine can be silent for longer than by default
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log, env=environment)

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def ready(self) -> None:
        await self.logs("ready: ")

    async def logs(self, text: str) -> None:
        def is_logged() -> bool:
            assert self.process.poll() is None or text in self.log, self.log
            return text in self.log

        await eventually(is_logged, START_TIMEOUT)

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, TEST_TIMEOUT)

    async def models(self) -> list[str]:
        async with http_client(self.url) as http:
            return [model["id"] for model in (await http.get("/v1/models")).json()["data"]]

    async def chat(self, model: str) -> httpx.Response:
        async with http_client(self.url) as http:
            return await http.post("/v1/chat/completions", json={**chat_body("The sea?"), "model": model})


@pytest.fixture
def serve(tmp_path: Path, redis: Any) -> Iterator[Any]:
    started: list[Served] = []

    def start(*options: str, env: dict[str, str] | None = None) -> Served:
        started.append(Served(tmp_path, *options, env=env))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


async def test_the_models_are_those_of_the_engine_and_the_second_request_is_a_hit(
    serve: Any, redis_server: RedisServer
) -> None:
    async with served(engine_of(LLAMA, api_key="sk-hunter2")) as url:
        options = ["--engine", url, "--redis", redis_server.url, "--api-key-env", "TEST_ENGINE_KEY"]
        router = serve(*options, env={"TEST_ENGINE_KEY": "sk-hunter2"})
        await router.ready()
        assert await router.models() == ["llama-3.1-8b-instruct", LLAMA]
        statuses = [(await router.chat(name)).headers["x-cache"] for name in (LLAMA, "llama-3.1-8b-instruct")]
        assert statuses == ["MISS", "HIT"]
        assert "no configuration file is used" in router.log
        assert "hunter2" not in router.log
        router.process.send_signal(signal.SIGHUP)
        await router.logs("there is no configuration file to reload")
        router.process.send_signal(signal.SIGTERM)
        assert await router.exit_code() == 0


async def test_redis_is_at_its_default_address_unless_the_environment_names_another() -> None:
    async with served(engine_of(LLAMA)) as url:
        for environment, address in (
            ({}, "redis://127.0.0.1:6379"),
            ({"ROUNDHOUSE_CACHE_URL": "redis://127.0.0.1:1"}, "redis://127.0.0.1:1"),
        ):
            settings = await settings_of_engines(ServeOptions(engine=[url]), environment, print)
            assert settings.redis_url == address


async def test_an_engine_with_a_key_gets_it_from_the_environment() -> None:
    async with served(engine_of(LLAMA, api_key="sk-hunter2")) as url:
        options = ServeOptions(engine=[url], api_key_env="TEST_ENGINE_KEY")
        settings = await settings_of_engines(options, {"TEST_ENGINE_KEY": "sk-hunter2"}, print)
    assert [engine.api_key for engine in settings.engine] == ["sk-hunter2"]


async def test_it_waits_for_an_engine_that_starts_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "_INTERVAL", 0.05)
    url = f"http://127.0.0.1:{free_port()}"
    engine, lines = ForeignScript(paths={"/v1/models": models_page("llama")}), list[str]()
    settings = asyncio.ensure_future(settings_of_engines(ServeOptions(engine=[url]), {}, lines.append))
    await eventually(lambda: lines)
    assert lines[0].startswith(f"waiting for the engine at {url}, ")
    assert lines[0].endswith(" of 600 s: nothing listens there")
    async with served(engine, port=int(url.rpartition(":")[2])):
        assert [model.name for model in (await settings).model] == ["llama"]


async def test_it_waits_no_longer_than_it_is_told(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    result = await run_cli("serve", "--engine", url, "--wait", "0")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == f"roundhouse: the engine at {url}: nothing listens there\n"


async def test_an_interrupted_wait_is_no_traceback(serve: Any) -> None:
    router = serve("--engine", f"http://127.0.0.1:{free_port()}")
    await router.logs("waiting for the engine at ")
    router.process.send_signal(signal.SIGINT)
    assert await router.exit_code() == 130
    assert "Traceback" not in router.log


@pytest.mark.parametrize(
    ("engine", "problem"),
    [
        (engine_of("llama", api_key="k"), "refuses the request without a key with status 401; see --api-key-env"),
        (ForeignScript(paths={"/v1/models": "hello"}), "gives status 200 and no list of models"),
    ],
)
async def test_an_answer_that_waiting_cannot_change_ends_the_start(engine: ForeignScript, problem: str) -> None:
    async with served(engine) as url:
        result = await run_cli("serve", "--engine", url)
    assert (result.code, result.stderr) == (1, f"roundhouse: the engine at {url}: {problem}\n")


async def test_engines_cannot_be_combined_with_a_file(tmp_path: Path) -> None:
    result = await run_cli("serve", "--engine", "http://h", "-c", tmp_path / "x.toml")
    assert result.code == 2
    assert "--engine: cannot be combined with --config or ROUNDHOUSE_CONFIG" in result.stderr


async def test_a_missing_key_and_options_for_engines_without_one_are_refused() -> None:
    unset = await run_cli("serve", "--engine", "http://h", "--api-key-env", "NO_SUCH_KEY")
    assert (unset.code, unset.stderr) == (
        2, "roundhouse: --api-key-env: the environment variable NO_SUCH_KEY is not set\n"
    )  # fmt: skip
    assert (await run_cli("serve", "--model", "llama")).code == 2


async def test_without_a_file_and_without_engines_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = await run_cli("serve")
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr == (
        "roundhouse: roundhouse.toml: No such file or directory; `roundhouse init` writes one, or name the engines: "
        "`roundhouse serve --engine URL`\n"
    )


async def test_options_count_more_than_the_environment_and_that_more_than_the_file(
    serve: Any, config: str, tmp_path: Path
) -> None:
    (tmp_path / "roundhouse.toml").write_text(config.replace("[router]", "[router]\nworkers = 1\nport = 1\n"))
    router = serve(
        "--host", "127.0.0.2", "--no-drain", env={"ROUNDHOUSE_ROUTER_LOG_FORMAT": "json", "ROUNDHOUSE_ROUTER_HOST": "h"}
    )
    await router.logs(f'"event":"ready","address":"http://127.0.0.2:{router.port}"')  # SIGHUP would end it before
    # A reload applies them again, so nothing has changed.
    router.process.send_signal(signal.SIGHUP)
    await router.logs("the new configuration is in effect")
    assert "a change needs a restart" not in router.log


async def test_a_wrong_option_names_itself(config: str, tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(config)
    result = await run_cli("serve", "-c", path, "--redis", "foo://hunter2")
    assert result.code == 2
    assert result.stderr.startswith("roundhouse: --redis: cache.url: expected embedded, redis://")
    assert "hunter2" not in result.stderr
