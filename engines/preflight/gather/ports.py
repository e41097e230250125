"""Whether an address can be bound, and if not, who has it and whether it answers."""

import errno
import socket
from typing import Final, Literal

import httpx

from engines.preflight.gather.processes import listeners
from engines.preflight.observations import Port

_HEALTH_TIMEOUT: Final = 2.0  # seconds
_FAILURES: Final[dict[int | None, Literal["in use", "no such address", "not permitted"]]] = {
    errno.EADDRINUSE: "in use",
    errno.EADDRNOTAVAIL: "no such address",
    errno.EACCES: "not permitted",
}


def read_port(engine: str | None, host: str, port: int) -> Port:
    """`engine` is None for the router."""
    try:
        # As `up` does it before it starts anything; SO_REUSEADDR is set, so that closed connections are no failure.
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return Port(engine=engine, host=host, port=port)
    except OSError as failure:
        # The errors of getaddrinfo are negative.
        name = "unknown host" if (failure.errno or 0) < 0 else _FAILURES.get(failure.errno)
    if name != "in use":
        return Port(engine=engine, host=host, port=port, failure=name or "no such address")
    return Port(
        engine=engine,
        host=host,
        port=port,
        failure=name,
        owners=listeners(port),
        is_healthy=_is_healthy(host, port),
    )


def _is_healthy(host: str, port: int) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        with httpx.Client(trust_env=False, timeout=_HEALTH_TIMEOUT) as client:
            return client.get(
                f"http://[{host}]:{port}/health" if ":" in host else f"http://{host}:{port}/health"
            ).is_success
    except httpx.HTTPError:
        return False
