"""`roundhouse init`: a file for engines that run."""

import os
from pathlib import Path

import pytest

from router.core.api_keys import hash_key
from router.settings import load
from tests.support.certificate import certificate, needs_openssl
from tests.support.cli_helpers import run_cli
from tests.support.first_steps import engine_of
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.scripted_engine import served
from tests.support.terminal import TerminalCommand

pytestmark = pytest.mark.asyncio(loop_scope="session")

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_ENGINE_KEY", "sk-hunter2")
    return "sk-hunter2"


async def test_it_asks_the_engines_and_the_file_passes_the_check(
    redis_server: RedisServer, tmp_path: Path, key: str
) -> None:
    path = tmp_path / "roundhouse.toml"
    async with served(engine_of(LLAMA, api_key=key)) as one, served(engine_of(LLAMA, "phi", api_key=key)) as two:
        options = ["--engine", one, "--engine", two, "--redis", redis_server.url, "--api-key-env", "TEST_ENGINE_KEY"]
        result = await run_cli("init", "-o", path, *options)
        assert (result.code, result.stdout) == (0, "")
        assert f"llama-3.1-8b-instruct: {LLAMA} at {one}, {two} (vllm)" in result.stderr
        assert f"wrote {path}" in result.stderr
        settings = load(path)
        assert [(model.name, model.aliases) for model in settings.model] == [
            ("llama-3.1-8b-instruct", [LLAMA]),
            ("phi", []),
        ]
        assert [engine.addresses for engine in settings.engine] == [[one, two], [two]]
        assert key not in path.read_text()
        check = await run_cli("check", "-c", path)
        assert (check.code, check.stderr) == (0, "")


async def test_a_file_is_overwritten_only_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text("mine")
    async with served(engine_of("llama")) as url:
        arguments = ["init", "--config", path, "--engine", url, "--redis", "redis://127.0.0.1:1"]
        refused = await run_cli(*arguments)
        assert (refused.code, path.read_text()) == (2, "mine")
        assert refused.stderr == f"roundhouse: {path} exists already; --force overwrites it\n"
        forced = await run_cli(*arguments, "--force")
        assert forced.code == 0
        assert "Redis at redis://127.0.0.1:1 does not answer" in forced.stderr
    assert [model.name for model in load(path).model] == ["llama"]


async def test_an_engine_that_is_down_and_one_that_wants_a_key_are_told_and_commented(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    down = f"http://127.0.0.1:{free_port()}"
    async with served(engine_of("llama", api_key="k")) as closed, served(engine_of("phi")) as up:
        options = [option for url in (down, closed, up) for option in ("--engine", url)]
        result = await run_cli("init", "-o", path, *options, "--redis", "embedded")
    assert result.code == 0
    assert f"the engine at {down}: nothing listens there" in result.stderr
    assert f"the engine at {closed}: refuses the request without a key with status 401" in result.stderr
    assert "--api-key-env VLLM_API_KEY" in result.stderr
    assert '"embedded" is the Redis that `roundhouse up` starts' in result.stderr
    assert [engine.addresses for engine in load(path).engine] == [[up]]
    assert f"# When this file was written, the engine at {down} could not be asked" in path.read_text()


@pytest.mark.parametrize(
    ("value", "problem", "remedy"),
    [
        (
            None,
            "refuses the request without a key with status 401",
            "name the environment variable with the engines' key",
        ),
        ("wrong", "refuses the key with status 401", "correct the key in the environment variable TEST_ENGINE_KEY"),
        (
            "",
            "refuses the request without a key with status 401",
            "set the environment variable TEST_ENGINE_KEY",
        ),
    ],
)
async def test_no_file_is_written_for_engines_that_refuse_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, problem: str, remedy: str
) -> None:
    path = tmp_path / "roundhouse.toml"
    monkeypatch.setenv("TEST_ENGINE_KEY", value or "")
    key_option = [] if value is None else ["--api-key-env", "TEST_ENGINE_KEY"]
    async with served(engine_of("llama", api_key="k")) as url:
        result = await run_cli("init", "-o", path, "--engine", url, "--redis", "embedded", *key_option)
    assert (result.code, result.stdout, path.exists()) == (1, "", False)
    why, refusal = result.stderr.splitlines()
    assert why == f"roundhouse: the engine at {url}: {problem}"
    assert refusal.startswith(f"roundhouse: {path} is not written; {remedy}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--engine: name at least one engine"),
        (["--engine", "ftp://h"], "--engine: expected http://HOST:PORT"),
        (["--engine", "http://user:hunter2@h"], "--engine: expected http://HOST:PORT"),
        (["--engine", "http://h", "--engine", "http://h/"], "--engine: the same URL twice"),
        (["--engine", "http://h", "--engine", "http://h/v1/"], "--engine: the same URL twice, or with and without /v1"),
        (["--engine", "http://h", "--api-key-env", "sk-hunter2"], "--api-key-env: expected the name of an environment"),
        (["--engine", "http://127.0.0.1:1", "--redis", "memory://hunter2"], "--redis: memory:// is not supported"),
    ],
)
async def test_wrong_options_are_one_line_and_write_nothing(tmp_path: Path, options: list[str], message: str) -> None:
    path = tmp_path / "roundhouse.toml"
    result = await run_cli("init", "-o", path, *options)
    assert (result.code, result.stdout, path.exists()) == (2, "", False)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"roundhouse: {message}")
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("command", "value"),
    [("init", "sk-hunter2\n"), ("serve", "sk-hunter2\r\n"), ("init", " sk-hunter2"), ("serve", "sk-hünter2")],
)
async def test_a_key_that_no_header_can_carry_is_refused_and_never_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, value: str
) -> None:
    monkeypatch.setenv("TEST_ENGINE_KEY", value)
    monkeypatch.chdir(tmp_path)
    result = await run_cli(command, "--engine", "http://127.0.0.1:1", "--api-key-env", "TEST_ENGINE_KEY")
    assert (result.code, result.stdout, list(tmp_path.iterdir())) == (2, "", [])
    (line,) = result.stderr.splitlines()
    assert line.startswith("roundhouse: the environment variable TEST_ENGINE_KEY is no key: it has spaces")
    assert "nter2" not in line


async def test_no_file_is_written_without_a_model(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    async with served(engine_of("llama")) as url:
        result = await run_cli("init", "-o", path, "--engine", url, "--redis", "embedded", "--model", "lama")
    assert (result.code, path.exists()) == (1, False)
    assert "roundhouse: no engine serves 'lama'\n" in result.stderr
    assert f"there is no model for a configuration, so {path} is not written" in result.stderr


@needs_openssl
async def test_an_engine_whose_authority_is_unknown_is_told_with_the_setting_for_it(tmp_path: Path) -> None:
    async with served(engine_of("llama"), certificate=certificate(tmp_path)) as url:
        result = await run_cli("init", "-o", tmp_path / "rh.toml", "--redis", "embedded", "--engine", url)
    assert result.code == 0
    assert f"the engine at {url}: its certificate is not trusted (" in result.stderr
    assert "; set ca_file in its [[engine]] to its authority's certificate" in result.stderr


async def test_on_a_terminal_it_asks_for_engines_key_and_redis(
    redis_server: RedisServer, tmp_path: Path, key: str
) -> None:
    path = tmp_path / "roundhouse.toml"
    async with (
        served(engine_of(LLAMA, api_key=key)) as url,
        TerminalCommand("init", "-o", path, env={"TEST_ENGINE_KEY": os.environ["TEST_ENGINE_KEY"]}) as shown,
    ):
        for question, reply in (
            ("URL of an engine [http://127.0.0.1:8000]: ", url),
            ("Another engine (Enter for none): ", "nonsense"),
            ("expected another URL", ""),
            ("environment variable with it [VLLM_API_KEY]: ", "TEST_ENGINE_KEY"),
            ("Redis [redis://127.0.0.1:6379]: ", redis_server.url),
        ):
            await shown.shows(question)
            shown.press(f"{reply}\r".encode())
        assert await shown.exit_code() == 0
    settings = load(path)
    assert (settings.cache.url, settings.engine[0].api_key) == (redis_server.url, key)


async def test_ctrl_d_at_a_question_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    async with TerminalCommand("init", "-o", path) as shown:
        await shown.shows("URL of an engine")
        shown.press(b"\x04")
        assert await shown.exit_code() == 1
        assert "Traceback" not in shown.text
    assert not path.exists()


async def test_it_makes_keys_for_tenants_and_an_administrator_and_writes_their_hashes(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "roundhouse.toml"
    async with served(engine_of("llama")) as url:
        options = ["--engine", url, "--redis", redis_server.url, "--tenant", "acme", "--tenant", "beta", "--admin-key"]
        result = await run_cli("init", "-o", path, *options)
        check = await run_cli("check", "-c", path)
    assert (result.code, check.code) == (0, 0)
    keys = dict(line.split(": ") for line in result.stdout.splitlines())
    assert list(keys) == ["tenant acme", "tenant beta", "admin"]
    settings = load(path)
    assert settings.auth_mode == "keys"
    assert settings.auth.admin_keys == [hash_key(keys["admin"].encode())]
    assert {tenant.name: tenant.keys for tenant in settings.tenant} == {
        name: [hash_key(keys[f"tenant {name}"].encode())] for name in ("acme", "beta")
    }
    assert not [key for key in keys.values() if key in path.read_text() + result.stderr]


async def test_with_an_admin_key_alone_everybody_may_send_requests(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    async with served(engine_of("llama")) as url:
        options = ["--engine", url, "--redis", "redis://127.0.0.1:1", "--admin-key"]
        assert (await run_cli("init", "-o", path, *options)).code == 0
    settings = load(path)
    assert (settings.auth_mode, len(settings.auth.admin_keys), settings.tenant) == ("open", 1, [])


@pytest.mark.parametrize(
    ("names", "problem"),
    [(["Acme"], "expected 1 to 64"), (["purge"], "is reserved"), (["a", "a"], "the same name twice")],
)
async def test_a_name_that_no_tenant_can_have_is_refused_before_anything_is_asked(
    tmp_path: Path, names: list[str], problem: str
) -> None:
    path = tmp_path / "roundhouse.toml"
    tenants = [option for name in names for option in ("--tenant", name)]
    result = await run_cli("init", "-o", path, "--engine", "http://127.0.0.1:1", *tenants)
    assert (result.code, result.stdout, path.exists()) == (2, "", False)
    assert problem in result.stderr
