"""The header Server-Timing: how long a request waited for what, for the developer at the other end.

Source: https://www.w3.org/TR/server-timing/
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from router.api.access.auth import Headers
from router.flow.exchange import Exchange
from router.flow.request_times import generation_times, milliseconds_text

IsAdmin = Callable[[Headers], bool]

_LOOPBACK: Final = ("127.0.0.1", "::1")
_OF_PROXIES: Final = frozenset((
    b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip",
))  # fmt: skip
"""Request headers that a proxy adds: whose client is on another machine though its connection comes from this one."""


class ServerTiming:
    """Of responses that needed a generation; a hit has none."""

    def __init__(self, *, enabled: bool | None, is_admin: IsAdmin) -> None:
        """`enabled`: None for the clients of this machine, and for those of whose headers `is_admin` says so."""
        self._enabled = enabled
        self._is_admin = is_admin

    def header_lines(self, exchange: Exchange, scope: Mapping[str, Any]) -> bytes:
        """To be called when the response starts: what comes later is not known."""
        if exchange.generation is None or not (self._is_for(scope) if self._enabled is None else self._enabled):
            return b""
        times = [
            name[:-3] + ";dur=" + milliseconds_text(value)  # without `_ms`
            for name, value in generation_times(exchange, exchange.generation, time.perf_counter())
            if name != "engine_ms" or not exchange.stream
        ]
        return b"server-timing: %b\r\n" % ", ".join(times).encode() if times else b""

    def _is_for(self, scope: Mapping[str, Any]) -> bool:
        return is_of_this_machine(scope) or self._is_admin(scope["headers"])


def is_of_this_machine(scope: Mapping[str, Any]) -> bool:
    """Whether the client runs on the router's machine. A proxy that adds no header is not recognised."""
    client = scope.get("client")
    if client is None or client[0] not in _LOOPBACK:
        return False
    for name, _ in scope["headers"]:  # noqa: SIM110 - a generator costs four times as much
        if name in _OF_PROXIES:
            return False
    return True
