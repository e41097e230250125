"""The page at `/`, and what a client is told whose base URL is wrong."""

import html

import pytest

from router.api.access.auth import hash_key
from tests.support.router_server import MakeRouter, RouterServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
CHAT = {"model": "llama", "messages": [{"role": "user", "content": "The sea?"}]}


async def test_a_browser_gets_a_page_with_what_to_do_next(router: RouterServer) -> None:
    answer = await router.http.get("/", headers=BROWSER)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert (answer.headers["vary"], answer.headers["cache-control"]) == ("accept", "no-store")
    page = html.unescape(answer.text)
    assert 'href="/dashboard"' in page
    assert f"curl {router.url}/v1/chat/completions" in page


async def test_programs_get_the_404_of_any_other_path(router: RouterServer) -> None:
    for accept in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        answer = await router.http.get("/", headers=accept)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["message"]) == (404, "not_found", "There is nothing at GET /.")


async def test_a_host_that_is_none_is_not_shown(router: RouterServer) -> None:
    for host in ("<script>x</script>", "h';rm -rf ~;'", "h ost"):
        page = (await router.http.get("/", headers={**BROWSER, "host": host})).text
        assert host not in html.unescape(page)
        assert "http://ROUTER/v1" in page


async def test_the_example_has_the_header_that_the_router_wants(make_router: MakeRouter, config: str) -> None:
    router = await make_router(f'{config}\n[[tenant]]\nname = "acme"\nkeys = ["{hash_key(b"key")}"]\n')
    assert "Authorization: Bearer KEY" in (await router.http.get("/", headers=BROWSER)).text


@pytest.mark.parametrize(
    ("method", "path", "right", "words"),
    [
        ("POST", "/chat/completions", "/v1/chat/completions", "the base URL of the client lacks /v1 at its end"),
        ("POST", "/messages", "/v1/messages", "lacks /v1"),
        ("POST", "/audio/transcriptions", "/v1/audio/transcriptions", "lacks /v1"),
        ("GET", "/models", "/v1/models", "lacks /v1"),
        ("POST", "/v1/v1/messages", "/v1/messages", "the base URL of the client has /v1 once too often"),
        ("POST", "/v1/tokenize", "/tokenize", "this path has /v1 once too often"),
        ("POST", "/v1/chat/completions/", "/v1/chat/completions", "without a slash at its end"),
    ],
)
async def test_a_base_url_with_too_little_or_too_much_is_told(
    router: RouterServer, method: str, path: str, right: str, words: str
) -> None:
    answer = await router.http.request(method, path, json=CHAT if method == "POST" else None)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (404, "not_found", "invalid_request_error")
    assert error["message"].startswith(f"There is nothing at {method} {path}. The path is {right}")
    assert words in error["message"]


async def test_another_unknown_path_gets_no_advice(router: RouterServer) -> None:
    for path in ("/v1/nothing", "/nothing", "/v1/", "/v1", "/api/chat"):
        message = (await router.http.get(path)).json()["error"]["message"]
        assert message == f"There is nothing at GET {path}."
