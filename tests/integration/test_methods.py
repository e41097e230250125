"""OPTIONS, HEAD, and the methods that a path does not have (RFC 9110, section 9)."""

import pytest

from router.api.access.auth import hash_key
from tests.support.raw_http import VERSION_REQUEST, connect, http_request
from tests.support.router_server import MakeRouter, RouterServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin"}
ADMIN_KEY = f'[auth]\nadmin_keys = ["{hash_key(b"admin")}"]'
READ = "GET, HEAD, OPTIONS"
METHODS = {
    "/v1/chat/completions": "OPTIONS, POST",
    "/v1/embeddings": "OPTIONS, POST",
    "/v1/models": READ,
    "/v1/models/llama": READ,
    "/v1/sessions/7f3a": "DELETE, OPTIONS",
    "/v1/responses/resp_1": "DELETE, GET, HEAD, OPTIONS",
    "/v1/responses/resp_1/input_items": READ,
    "/health": READ,
    "/healthz": READ,
    "/readyz": READ,
    "/version": READ,
    "/metrics": READ,
    "/dashboard": READ,
    "/dashboard/login": "GET, HEAD, OPTIONS, POST",
    "/admin/status": READ,
    "/admin/cache/entries/rh:1:a:b:c:d:e": "DELETE, GET, HEAD, OPTIONS",
    "/admin/cache/purge": "OPTIONS, POST",
}
READABLE = ["/v1/models", "/v1/models/llama", "/health", "/healthz", "/readyz", "/version", "/dashboard/static/main.js",
            "/dashboard/login", "/admin/engines", "/admin/cache/stats"]  # fmt: skip


@pytest.mark.parametrize(("path", "methods"), METHODS.items())
async def test_options_names_the_methods_of_a_path_and_so_does_a_405(
    make_router: MakeRouter, config: str, path: str, methods: str
) -> None:
    router = await make_router(f"{config}\n{ADMIN_KEY}")
    answer = await router.http.options(path, headers=ADMIN)
    assert (answer.status_code, answer.content, answer.headers["allow"]) == (204, b"", methods)
    assert "content-length" not in answer.headers
    assert answer.headers["x-request-id"]
    refused = await router.http.put(path, headers=ADMIN)
    assert (refused.status_code, refused.headers["allow"]) == (405, methods)
    assert refused.json()["error"]["code"] == "method_not_allowed"


async def test_options_of_the_whole_server_and_of_no_path(router: RouterServer) -> None:
    async with connect(router.port) as connection:
        connection.write(http_request(None, method=b"OPTIONS", path=b"*"), VERSION_REQUEST)
        answer = await connection.read_response(to_head_request=True)
        assert answer.status == 204
        assert b"allow: delete, get, head, options, post\r\n" in answer.head
        assert (await connection.read_response()).status == 200
    assert (await router.http.options("/nothing")).status_code == 404


async def test_without_a_key_the_admin_api_tells_nothing_about_its_paths(make_router: MakeRouter, config: str) -> None:
    router = await make_router(f"{config}\n{ADMIN_KEY}")
    for path in ("/admin/engines", "/admin/nothing"):
        for method in ("OPTIONS", "HEAD", "PUT"):
            answer = await router.http.request(method, path)
            assert (answer.status_code, answer.headers.get("allow")) == (401, None)


@pytest.mark.parametrize("path", READABLE)
async def test_head_is_get_without_the_body(make_router: MakeRouter, config: str, path: str) -> None:
    router = await make_router(f"{config}\n{ADMIN_KEY}")

    async def has_the_length() -> bool:
        """The times and the memory that some of them report may have a digit more when they are read again."""
        got = await router.http.get(path, headers=ADMIN)
        async with connect(router.port) as connection:
            connection.write(http_request(None, b"authorization: Bearer admin", method=b"HEAD", path=path.encode()))
            connection.write(VERSION_REQUEST)  # its response would be misread after a body
            head = await connection.read_response(to_head_request=True)
            assert (await connection.read_response()).body.startswith(b'{"version"')
        assert head.status == got.status_code
        return int(head.head.partition(b"content-length: ")[2].split(b"\r\n")[0]) == len(got.content)

    await eventually(has_the_length)


async def test_head_of_the_metrics_has_the_length_of_a_page(router: RouterServer) -> None:
    answer = await router.http.head("/metrics")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) > 1000


async def test_head_of_an_endpoint_that_generates_is_405_without_a_body(router: RouterServer) -> None:
    answer = await router.http.head("/v1/chat/completions")
    assert (answer.status_code, answer.headers["allow"], answer.content) == (405, "OPTIONS, POST", b"")
