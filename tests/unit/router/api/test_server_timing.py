"""Who gets Server-Timing by default: clients on the router's machine that no proxy stands before."""

from typing import Any

import pytest

from router.api.inference.server_timing import ServerTiming
from router.core.endpoints.chat import CHAT
from router.flow.exchange import Exchange
from tests.support.inflight_factory import generation_record


def exchange() -> Exchange:
    exchange = Exchange(endpoint=CHAT, request_id="r", started_at=0.0)
    exchange.generation = generation_record("acme", stream=True)
    exchange.generation.queue_seconds = 1.25
    return exchange


def scope(client: Any, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"client": client, "headers": list(headers)}


LOCAL = ("127.0.0.1", 50_000)


@pytest.mark.parametrize(
    ("request_scope", "is_shown"),
    [
        (scope(LOCAL), True),
        (scope(("::1", 50_000)), True),
        (scope(("10.0.0.1", 50_000)), False),
        (scope(None), False),
        (scope(LOCAL, (b"x-forwarded-for", b"10.0.0.1")), False),
        (scope(LOCAL, (b"forwarded", b"for=10.0.0.1")), False),
        (scope(LOCAL, (b"via", b"1.1 proxy")), False),
    ],
)
def test_by_default_only_direct_clients_of_this_machine_get_it(request_scope: dict[str, Any], is_shown: bool) -> None:
    lines = ServerTiming(enabled=None).header_lines(exchange(), request_scope)
    assert lines == (b"server-timing: queue;dur=1250.00\r\n" if is_shown else b"")


@pytest.mark.parametrize("enabled", [True, False])
def test_the_setting_is_for_all_clients(enabled: bool) -> None:
    for client in (LOCAL, ("10.0.0.1", 50_000)):
        assert bool(ServerTiming(enabled=enabled).header_lines(exchange(), scope(client))) is enabled
