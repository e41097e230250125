"""The tenant comes from an API key or a trusted proxy, never from an untrusted client header."""

import hashlib
import hmac
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.api.access.auth import KEYS_UNKNOWN, MODE_UNSET, AdminAuthenticator, Authenticator, Headers, hash_key
from router.core.api_keys import KeyRecord
from router.errors import ApiError

KEYS: Final = {"acme-key": "acme", "acme-second": "acme", "other-key": "other"}
TENANTS: Final = ("acme", "other", "third")


def authenticator(mode: str) -> Authenticator:
    return Authenticator(mode, {hash_key(key.encode()): tenant for key, tenant in KEYS.items()}, TENANTS)  # type: ignore[arg-type]  # a test may say any


def bearer(value: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"x"), (b"authorization", value)]


def refused(mode: str, headers: Headers) -> None:
    with pytest.raises(ApiError) as caught:
        authenticator(mode).authenticate(headers)
    assert caught.value.status == 401
    assert caught.value.code == "invalid_api_key"


def test_a_key_is_written_as_its_sha_256() -> None:
    assert hash_key("é".encode()) == "sha256:" + hashlib.sha256("é".encode()).hexdigest()


def test_ten_thousand_keys_cost_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = hmac.compare_digest

    def counting(a: str, b: str) -> bool:
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    keys = {hash_key(b"key-%d" % number): f"t{number}" for number in range(10_000)}
    authenticator = Authenticator("keys", keys, keys.values())
    assert authenticator.authenticate(bearer(b"Bearer key-7777")).tenant == "t7777"
    with pytest.raises(ApiError):
        authenticator.authenticate(bearer(b"Bearer stranger"))
    admin = AdminAuthenticator(keys)
    admin.check(bearer(b"Bearer key-3"))
    with pytest.raises(ApiError):
        admin.check(bearer(b"Bearer stranger"))
    assert compared == [(hash_key(key), hash_key(key)) for key in (b"key-7777", b"key-3")]


def test_a_key_has_a_short_id_and_only_the_keys_mode_knows_it() -> None:
    identity = authenticator("keys").authenticate(bearer(b"Bearer acme-second"))
    assert identity == ("acme", hashlib.sha256(b"acme-second").hexdigest()[:8])
    assert authenticator("open").authenticate(bearer(b"Bearer acme-second")) == ("default", None)
    assert authenticator("header").authenticate([(b"x-tenant-id", b"acme")]) == ("acme", None)


def test_in_open_mode_every_client_is_the_default_tenant() -> None:
    for headers in ([], bearer(b"Bearer other-key"), bearer(b"nonsense"), [(b"x-tenant-id", b"acme")]):
        assert authenticator("open").authenticate(headers).tenant == "default"


@pytest.mark.parametrize("key", KEYS)
def test_a_key_belongs_to_its_tenant(key: str) -> None:
    assert authenticator("keys").authenticate(bearer(b"Bearer " + key.encode())).tenant == KEYS[key]


@pytest.mark.parametrize(
    "value", [b"bearer acme-key", b"BEARER acme-key", b"Bearer  acme-key ", b"Bearer\x20acme-key\t"]
)
def test_the_scheme_is_known_in_any_case_and_with_any_space(value: bytes) -> None:
    assert authenticator("keys").authenticate(bearer(value)).tenant == "acme"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(b""),
        bearer(b"Bearer"),
        bearer(b"Bearer "),
        bearer(b"Bearer nobody"),
        bearer(b"Bearer ACME-KEY"),
        bearer(b"Bearer acme-key x"),
        bearer(b"Bearer acme"),
        bearer(b"acme-key"),
        bearer(b"Basic acme-key"),
        bearer(b"Bearer \xff\x00"),
        bearer(b"Bearer " + hash_key(b"acme-key").encode()),
        [(b"x-api-key", b"acme-key")],
        [(b"x-tenant-id", b"acme")],
    ],
)
def test_a_missing_identity_is_refused_where_one_is_required(headers: Headers) -> None:
    refused("keys", headers)


def test_two_identities_are_refused() -> None:
    refused("keys", [*bearer(b"Bearer acme-key"), *bearer(b"Bearer other-key")])
    refused("keys", [*bearer(b"Bearer acme-key"), *bearer(b"Bearer acme-key")])
    refused("header", [(b"x-tenant-id", b"acme"), (b"x-tenant-id", b"other")])


def test_a_client_with_a_key_cannot_name_another_tenant() -> None:
    headers = [*bearer(b"Bearer acme-key"), (b"x-tenant-id", b"other")]
    assert authenticator("keys").authenticate(headers).tenant == "acme"


def test_a_trusted_proxy_names_the_tenant() -> None:
    for name in TENANTS:
        assert authenticator("header").authenticate([(b"x-tenant-id", name.encode())]).tenant == name


@pytest.mark.parametrize("value", [b"", b"nobody", b"ACME", b" acme", b"acme,other", b"\xff", b"default"])
def test_a_proxy_can_only_name_a_tenant_that_exists(value: bytes) -> None:
    refused("header", [(b"x-tenant-id", value)])
    refused("header", bearer(b"Bearer acme-key"))


def test_a_refusal_reveals_nothing_of_the_key_that_was_sent() -> None:
    with pytest.raises(ApiError) as caught:
        authenticator("keys").authenticate(bearer(b"Bearer hunter2"))
    assert b"hunter2" not in caught.value.body()


@given(st.binary(max_size=40), st.sampled_from(["keys", "header"]))
def test_no_header_raises_anything_but_a_refusal(value: bytes, mode: str) -> None:
    refused(mode, [(b"authorization", value), (b"authorization", value)])
    refused(mode, [(b"authorization", b"Bearer " + value), (b"x-tenant-id", b"!" + value)])


# -- administrators ---------------------------------------------------------------------------------------------------

ADMIN = AdminAuthenticator([hash_key(b"first"), hash_key(b"second")])


@pytest.mark.parametrize("value", [b"Bearer first", b"bearer  second "])
def test_an_admin_key_is_accepted(value: bytes) -> None:
    ADMIN.check(bearer(value))
    assert ADMIN.is_admin(bearer(value))


@pytest.mark.parametrize(
    "headers",
    [
        [], bearer(b"Bearer"), bearer(b"Bearer third"), bearer(b"Basic first"), bearer(b"first"),
        bearer(b"Bearer " + hash_key(b"first").encode()), bearer(b"Bearer first") + bearer(b"Bearer first"),
        [(b"x-api-key", b"first")],
    ],
)  # fmt: skip
def test_a_request_without_an_admin_key_is_refused(headers: Headers) -> None:
    with pytest.raises(ApiError) as caught:
        ADMIN.check(headers)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")
    assert not ADMIN.is_admin(headers)


@pytest.mark.parametrize("headers", [[], bearer(b"Bearer "), bearer(b"Bearer first")])
def test_without_admin_keys_every_request_is_refused(headers: Headers) -> None:
    closed = AdminAuthenticator([])
    assert not closed.is_admin(headers)
    with pytest.raises(ApiError) as caught:
        closed.check(headers)
    assert (caught.value.status, caught.value.code) == (403, "admin_closed")


# Where x-api-key is taken


def test_a_key_in_x_api_key_counts_only_where_it_is_accepted() -> None:
    headers = [(b"x-api-key", b"acme-key")]
    assert authenticator("keys").authenticate(headers, allow_x_api_key=True).tenant == "acme"
    refused("keys", headers)
    assert authenticator("open").authenticate(headers, allow_x_api_key=True).tenant == "default"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"x-api-key", b"")],
        [(b"x-api-key", b"wrong")],
        [(b"x-api-key", b"Bearer acme-key")],
        [(b"x-api-key", b"acme-key"), (b"x-api-key", b"acme-key")],
        [(b"x-api-key", b"acme-key"), (b"authorization", b"Bearer other-key")],
        [(b"x-api-key", b"acme-key"), (b"authorization", b"Bearer wrong")],
    ],
)
def test_two_different_or_wrong_keys_are_refused(headers: Headers) -> None:
    with pytest.raises(ApiError) as caught:
        authenticator("keys").authenticate(headers, allow_x_api_key=True)
    assert caught.value.status == 401


def test_one_key_in_both_headers_is_one_key() -> None:
    headers = [(b"x-api-key", b"acme-key"), (b"authorization", b"Bearer acme-key")]
    assert authenticator("keys").authenticate(headers, allow_x_api_key=True).tenant == "acme"


# Keys in Redis


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def record(key: bytes, tenant: str = "acme", **fields: float) -> KeyRecord:
    return KeyRecord(hash=hash_key(key), tenant=tenant, name="ci", created=0, **fields)


def stored_authenticator(clock: Clock, mode: str = "keys", *, guarded: bool = False) -> Authenticator:
    configured = {hash_key(b"acme-key"): "acme"} if mode == "keys" else {}
    return Authenticator(mode, configured, TENANTS, guarded=guarded, has_stored_keys=True, clock=clock)  # type: ignore[arg-type]  # a test may say any


def status(authenticator: Authenticator, key: bytes) -> tuple[int, str | None]:
    try:
        authenticator.authenticate(bearer(b"Bearer " + key))
    except ApiError as error:
        return error.status, error.code
    return 200, None


def test_a_key_in_redis_belongs_to_its_tenant_until_it_is_revoked() -> None:
    authenticator = stored_authenticator(Clock())
    authenticator.set_stored_keys([record(b"ci-key", "other")])
    assert authenticator.authenticate(bearer(b"Bearer ci-key")) == ("other", hash_key(b"ci-key")[7:15])
    authenticator.set_stored_keys([record(b"ci-key", "other", revoked=1)])
    assert status(authenticator, b"ci-key") == (401, "invalid_api_key")
    assert status(authenticator, b"acme-key") == (200, None)


def test_a_key_of_a_tenant_that_is_not_configured_is_refused() -> None:
    authenticator = stored_authenticator(Clock())
    authenticator.set_stored_keys([record(b"ci-key", "gone")])
    assert status(authenticator, b"ci-key") == (401, "invalid_api_key")


def test_a_key_expires_by_the_clock_whichever_way_that_jumps() -> None:
    clock = Clock()
    authenticator = stored_authenticator(clock)
    authenticator.set_stored_keys([record(b"ci-key", expires=2000)])
    for clock.now, expected in ((1999.9, 200), (2000.0, 401), (9e9, 401), (1000.0, 200)):
        assert status(authenticator, b"ci-key")[0] == expected
    clock.now = 2001
    with pytest.raises(ApiError, match="has expired"):
        authenticator.authenticate(bearer(b"Bearer ci-key"))


def test_until_redis_was_read_an_unknown_key_is_not_called_invalid() -> None:
    authenticator = stored_authenticator(Clock())
    assert status(authenticator, b"ci-key") == (503, "keys_unknown")
    assert status(authenticator, b"acme-key") == (200, None)
    with pytest.raises(ApiError) as caught:
        authenticator.authenticate([])
    assert caught.value.status == 401
    authenticator.set_stored_keys([])
    assert status(authenticator, b"ci-key") == (401, "invalid_api_key")


@pytest.mark.parametrize("ended", [{}, {"revoked": 1.0}, {"expires": 1.0}])
def test_a_router_without_a_mode_is_not_open_if_redis_has_keys(ended: dict[str, float]) -> None:
    stored = replace(record(b"ci-key"), **ended)
    authenticator = stored_authenticator(Clock(), "open", guarded=True)
    authenticator.set_stored_keys([stored])
    assert status(authenticator, b"ci-key") == (503, "auth_mode_unset")
    with pytest.raises(ApiError):
        authenticator.authenticate([])
    open_ = stored_authenticator(Clock(), "open")
    open_.set_stored_keys([stored])
    assert status(open_, b"any") == (200, None)


def test_a_router_without_a_mode_that_asks_for_keys_goes_on_when_redis_has_some() -> None:
    authenticator = stored_authenticator(Clock(), "keys", guarded=True)
    assert authenticator.refuses_all is None
    authenticator.set_stored_keys([record(b"ci-key")])
    assert authenticator.refuses_all is None
    assert [status(authenticator, key) for key in (b"acme-key", b"ci-key")] == [(200, None), (200, None)]


def refusal(authenticator: Authenticator) -> str | None:
    return authenticator.refuses_all


def test_a_router_that_refuses_every_request_says_why_and_logs_an_error_once(caplog: pytest.LogCaptureFixture) -> None:
    authenticator = stored_authenticator(Clock(), "open", guarded=True)
    assert refusal(authenticator) == KEYS_UNKNOWN
    for _ in range(2):
        authenticator.set_stored_keys([record(b"ci-key")])
        assert refusal(authenticator) == MODE_UNSET
    assert [(each.levelname, "auth_mode_unset" in each.message) for each in caplog.records] == [("ERROR", True)]
    authenticator.set_stored_keys([])
    assert refusal(authenticator) is None
    waiting = Authenticator("keys", {}, ["default"], has_stored_keys=True)
    assert refusal(waiting) == KEYS_UNKNOWN
    waiting.set_stored_keys([])
    assert refusal(waiting) is None
    assert refusal(stored_authenticator(Clock())) is None, "a key of the configuration is valid without Redis"


def test_a_router_without_a_mode_but_with_tenants_is_open_only_once_redis_was_read() -> None:
    authenticator = stored_authenticator(Clock(), "open", guarded=True)
    assert status(authenticator, b"any") == (503, "keys_unknown")
    authenticator.set_stored_keys([])
    assert status(authenticator, b"any") == (200, None)
    alone = Authenticator("open", {}, ["default"], guarded=True, has_stored_keys=True)
    assert status(alone, b"any") == (200, None)


def test_the_ids_of_used_keys_are_taken_once() -> None:
    authenticator = stored_authenticator(Clock())
    authenticator.set_stored_keys([record(b"ci-key"), record(b"idle-key")])
    for key in (b"ci-key", b"ci-key", b"acme-key", b"unknown"):
        status(authenticator, key)
    authenticator.set_stored_keys([record(b"ci-key")])  # another reading of the records forgets nothing
    assert sorted(authenticator.take_used()) == sorted(hash_key(key)[7:15] for key in (b"ci-key", b"acme-key"))
    assert authenticator.take_used() == []


def test_the_use_of_an_admin_key_is_recorded() -> None:
    used: list[str] = []
    admin = AdminAuthenticator([hash_key(b"first")], used.append)
    admin.check(bearer(b"Bearer first"))
    with pytest.raises(ApiError):
        admin.check(bearer(b"Bearer third"))
    assert used == [hash_key(b"first")[7:15]]
