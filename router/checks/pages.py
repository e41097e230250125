"""Asks an HTTP server for a page, and says in words why there is none."""

from typing import Final

import msgspec

from router.checks.finding import Problem
from router.checks.words import Fixes, describe
from router.net.client.errors import EngineError
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from router.settings import EngineSettings
from router.upstream.engine_kinds import MODELS_PATH

CHECK_TIMEOUT: Final = 5.0
"""Seconds for each response."""

_MAX_PAGE: Final = 4 << 20  # bytes


async def get_page(transport: HTTPTransport, target: RequestTarget, *, timeout: float) -> tuple[int, bytes]:
    """Status and body. `timeout` in seconds. Raises EngineError."""
    sent = transport.send(
        target.origin, target.get_request, connect_timeout=timeout, head_timeout=timeout, total_timeout=timeout
    )
    with await sent as response:
        return response.status, await response.read(_MAX_PAGE)


def engine_target(engine: EngineSettings, url: str, path: str) -> RequestTarget:
    return RequestTarget(url, path, headers=engine.request_headers, ca_file=engine.ca_file or "")


async def get_models(
    transport: HTTPTransport, engine: EngineSettings, url: str, *, timeout: float = CHECK_TIMEOUT
) -> tuple[int, bytes]:
    """Status and body of an engine's /v1/models. Raises EngineError."""
    return await get_page(transport, engine_target(engine, url, MODELS_PATH), timeout=timeout)


def model_names(page: bytes) -> list[str] | None:
    """None if the page is no list of models: the server may answer anything."""
    try:
        names = [model["id"] for model in msgspec.json.decode(page)["data"]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return None
    return names if all(isinstance(name, str) for name in names) else None


def explain_failure(error: EngineError, fixes: Fixes, *, timeout: float = CHECK_TIMEOUT) -> Problem:
    """Why there was no response; the cause of an EngineError has the details."""
    if (problem := describe(error, fixes, timeout)) is not None:
        return problem
    if error.reason == "too-large":
        note = f"has a list of models of more than {_MAX_PAGE >> 20} MiB, which is not read"
        return Problem(note, "point the URL at a server with fewer models")
    if error.reason == "timeout":
        return Problem(f"does not answer within {timeout:g} s", fixes.start)
    return Problem(f"does not answer in HTTP ({error})", fixes.correct_host)
