"""The header lines that tell a browser what a page may do."""

import pytest

from router.api.cors import ALLOWED_HEADERS, CorsPolicy, is_private

APP, OTHER = b"https://app.example", b"https://evil.example"


def lines(raw: bytes | None) -> dict[bytes, bytes]:
    assert raw is not None
    pairs = [line.partition(b": ") for line in raw.split(b"\r\n")[:-1]]
    assert len({name for name, _, _ in pairs}) == len(pairs)
    return {name: value for name, _, value in pairs}


def preflight(policy: CorsPolicy, requested: bytes = b"", origin: bytes = APP) -> dict[bytes, bytes]:
    headers = [(b"origin", origin), (b"access-control-request-method", b"POST")]
    return lines(policy.preflight_lines([*headers, (b"access-control-request-headers", requested)]))


def test_an_allowed_origin_is_named_and_the_response_varies_with_it() -> None:
    sent = lines(CorsPolicy([APP.decode()]).response_lines([(b"origin", APP)]))
    assert (sent[b"access-control-allow-origin"], sent[b"vary"]) == (APP, b"Origin")
    assert b"X-Cache-Reason" in sent[b"access-control-expose-headers"].split(b", ")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"origin", OTHER)],
        [(b"origin", b"null")],
        [(b"origin", APP + b".evil.example")],
        [(b"origin", b"https://APP.example")],
        [(b"origin", APP), (b"origin", APP)],
    ],
)
def test_any_other_request_gets_only_vary(headers: list[tuple[bytes, bytes]]) -> None:
    assert CorsPolicy([APP.decode()]).response_lines(headers) == b"vary: Origin\r\n"


def test_all_origins_get_the_same_response() -> None:
    policy = CorsPolicy(["*"])
    sent = policy.response_lines([(b"origin", OTHER)])
    assert sent == policy.response_lines([])
    assert lines(sent)[b"access-control-allow-origin"] == b"*"
    assert b"vary" not in lines(sent)


@pytest.mark.parametrize("origins", [["*"], [APP.decode()]])
def test_credentials_are_never_allowed(origins: list[str]) -> None:
    policy = CorsPolicy(origins)
    assert b"credentials" not in policy.response_lines([(b"origin", APP)])
    assert b"access-control-allow-credentials" not in preflight(policy)


def test_a_preflight_allows_what_the_router_reads_and_what_the_page_asks_for() -> None:
    sent = preflight(CorsPolicy([APP.decode()]), b"authorization,x-stainless-os, Anthropic-Version")
    allowed = sent[b"access-control-allow-headers"].split(b", ")
    assert allowed == [*ALLOWED_HEADERS, b"x-stainless-os", b"anthropic-version"]
    assert sent[b"access-control-allow-origin"] == APP
    assert b"POST" in sent[b"access-control-allow-methods"].split(b", ")
    assert int(sent[b"access-control-max-age"]) > 600


@pytest.mark.parametrize(
    "requested", [b"", b"a b", b"x\x00y", b"x:y", b",", b"x" * 3000, b"x-tenant-id", b"*,x-tenant-id"]
)
def test_a_preflight_for_anything_else_allows_what_the_router_reads(requested: bytes) -> None:
    sent = preflight(CorsPolicy(["*"]), requested)
    assert sent[b"access-control-allow-headers"].split(b", ") == list(ALLOWED_HEADERS)


def test_a_preflight_of_another_origin_allows_nothing() -> None:
    assert preflight(CorsPolicy([APP.decode()]), origin=OTHER) == {b"vary": b"Origin"}


def test_options_without_an_origin_or_a_requested_method_is_no_preflight() -> None:
    policy = CorsPolicy(["*"])
    assert policy.preflight_lines([(b"origin", APP)]) is None
    assert policy.preflight_lines([(b"access-control-request-method", b"POST")]) is None


def test_the_admin_api_and_the_dashboard_are_private() -> None:
    assert all(map(is_private, ["/admin", "/admin/engines", "/dashboard", "/dashboard/login"]))
    assert not any(map(is_private, ["/", "/administrator", "/v1/models", "/v1/admin"]))
