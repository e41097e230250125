"""Who gets Server-Timing by default: clients of the router's machine, also if a proxy runs there."""

import pytest

from router.api.inference.server_timing import is_of_this_machine

OWN = [(b"host", b"127.0.0.1:8080"), (b"accept", b"*/*"), (b"user-agent", b"curl")]


@pytest.mark.parametrize(
    ("client", "is_own"),
    [
        (("127.0.0.1", 5000), True),
        (("::1", 5000), True),
        (("127.0.0.1.example", 5000), False),
        (("10.0.0.7", 5000), False),
        (None, False),
    ],
)
def test_the_address_of_the_connection_decides(client: tuple[str, int] | None, is_own: bool) -> None:
    assert is_of_this_machine({"client": client, "headers": OWN}) is is_own


@pytest.mark.parametrize(
    "header", ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"]
)
def test_what_a_proxy_has_passed_on_comes_from_another_machine(header: str) -> None:
    scope = {"client": ("127.0.0.1", 5000), "headers": [*OWN, (header.encode(), b"x")]}
    assert not is_of_this_machine(scope)
