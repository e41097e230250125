"""`roundhouse check` names what is wrong with an engine in words."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from router.checks.check import check_all
from router.checks.pages import CHECK_TIMEOUT
from router.net.client.errors import unreachable
from router.net.client.transport import HTTPTransport
from router.settings import parse
from tests.support.certificate import certificate, needs_openssl
from tests.support.foreign_script import ForeignScript
from tests.support.ports import free_port
from tests.support.redis_process import RedisServer
from tests.support.router_server import LLAMA, router_config
from tests.support.scripted_engine import served

NOTHING = "nothing listens there; start it, or correct the URL"
HOST = "its host name is unknown; correct the host of the URL"

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def note(
    redis_server: RedisServer, url: str, settings: str = "", timeout: float = CHECK_TIMEOUT
) -> tuple[bool, str]:
    """What is found about the engine, and what to do."""
    text = router_config(redis_server.url, {"foreign": ("llama", "any", url)}, rest=settings)
    findings = await check_all(parse(text, {}), timeout=timeout)
    (engine,) = (finding for finding in findings if finding.what == f"engine foreign at {url}")
    return engine.ok, engine.note + (f"; {engine.fix}" if engine.fix is not None else "")


async def test_an_engine_that_serves_the_model_is_fine_and_its_kind_is_told(redis_server: RedisServer) -> None:
    async with served(ForeignScript(owned_by="llamacpp", api_key="k")) as url:
        assert await note(redis_server, url, 'api_key = "k"') == (True, f"serves {LLAMA} (llama.cpp)")


async def test_a_missing_or_wrong_key_is_named(redis_server: RedisServer) -> None:
    async with served(ForeignScript(api_key="sk-secret")) as url:
        assert await note(redis_server, url) == (
            False,
            "refuses the router with status 401; set api_key to a key that it accepts",
        )
        ok, text = await note(redis_server, url, 'api_key = "sk-wrong"')
        assert (ok, text) == (False, "refuses the router with status 401; correct api_key to a key that it accepts")


async def test_another_model_and_a_wrong_path_are_named(redis_server: RedisServer) -> None:
    engine = ForeignScript(paths={"/v1/models": '{"data": [{"id": "other"}]}'})
    async with served(engine) as url:
        ok, text = await note(redis_server, url)
        assert not ok
        assert text.startswith(f"serves other but not '{LLAMA}'; set it to a name that the engine serves")
        wrong_path = await note(redis_server, f"{url}/openai")
        assert wrong_path == (False, "has no /v1/models (status 404); correct the path of the URL")


async def test_a_closed_port_an_unknown_host_and_a_missing_socket_are_named(redis_server: RedisServer) -> None:
    assert await note(redis_server, f"http://127.0.0.1:{free_port()}") == (False, NOTHING)
    assert await note(redis_server, "unix:///no/such/engine.sock") == (False, NOTHING)
    assert await note(redis_server, "http://engine.invalid:8000") == (False, HOST)


@needs_openssl
async def test_tls_problems_are_named(redis_server: RedisServer, tmp_path: Path) -> None:
    async with served(ForeignScript(), certificate=certificate(tmp_path)) as url:
        ok, text = await note(redis_server, url)
        assert not ok
        assert text.startswith("its certificate is not trusted (")
        assert text.endswith("set ca_file to its authority's certificate")
    async with served(ForeignScript()) as url:
        not_tls = await note(redis_server, url.replace("http", "https"))
        assert not_tls == (False, "does not speak TLS; write http:// in place of https://")


@needs_openssl
async def test_a_certificate_for_another_host_and_one_that_has_expired_are_told_apart(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = certificate(tmp_path, name="DNS:engine.example")
    async with served(ForeignScript(), certificate=other) as url:
        ok, text = await note(redis_server, url, f'ca_file = "{other}"')
        assert not ok
        assert text.startswith("its certificate is for another host (")
    expired = ssl.SSLCertVerificationError("certificate verify failed")
    expired.verify_code, expired.verify_message = 10, "certificate has expired"
    failure = unreachable()
    failure.__cause__ = expired

    async def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(HTTPTransport, "send", fail)  # openssl makes no certificate that has expired
    ok, text = await note(redis_server, url)
    assert not ok
    assert text.startswith("its certificate is not valid now (certificate has expired); renew the certificate")


@pytest.mark.parametrize("page", ['{"data": [{"id": 1}]}', "[" * 100_000, '{"data": 1}', "null"])
async def test_a_page_that_is_no_list_of_models_is_named(redis_server: RedisServer, page: str) -> None:
    async with served(ForeignScript(paths={"/v1/models": page})) as url:
        assert await note(redis_server, url) == (
            False,
            "status 200 without a list of models; point the URL at a server with OpenAI's API",
        )


async def test_a_long_list_of_models_is_shortened_and_safe_for_a_terminal(redis_server: RedisServer) -> None:
    models = [{"id": "\x1b[2J"}, *({"id": f"model-{number}"} for number in range(500))]
    async with served(ForeignScript(paths={"/v1/models": json.dumps({"data": models})})) as url:
        ok, text = await note(redis_server, url)
        assert not ok
        assert text.startswith("serves '\\x1b[2J', model-0, ")
        assert f"model-8 and 491 more but not '{LLAMA}'; " in text


async def test_a_server_that_never_answers_is_named(redis_server: RedisServer) -> None:
    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        assert await note(redis_server, url, timeout=1) == (False, "does not answer within 1 s; " + NOTHING[23:])
