"""Asks engines which models they serve, once or until they are up."""

import asyncio
import math
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.addresses import base_url
from router.discovery.models import read_models
from router.discovery.plan import Answer
from router.net.client.errors import EngineError
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from router.upstream.engine_kinds import MODELS_PATH

TIMEOUT: Final = 5.0
"""Seconds for a response."""

_INTERVAL: Final = 1.0  # seconds between two questions to an engine that is not up
_REPORT_INTERVAL: Final = 10.0  # seconds
_MAX_PAGE: Final = 4 << 20  # bytes
_OK: Final = 200


async def ask_engines(urls: Sequence[str], headers: Mapping[str, str]) -> list[Answer]:
    """`headers` hold the key of the engines, if they want one. Never raises: a server may answer anything."""
    async with HTTPTransport() as transport:
        return list(await asyncio.gather(*[_ask(transport, url, headers) for url in urls]))


async def wait_for_engines(
    urls: Sequence[str], headers: Mapping[str, str], *, seconds: float, report: Callable[[str], None]
) -> list[Answer]:
    """Asks until each engine answers, for at most `seconds`; an answer that waiting cannot change ends it earlier.

    `report` gets a line for a person about what is waited for.
    """
    start, reported = time.monotonic(), -math.inf
    answers = {url: Answer(url, retry=True) for url in urls}
    while True:
        waiting = [url for url, answer in answers.items() if answer.retry]
        answers |= {answer.url: answer for answer in await ask_engines(waiting, headers)}
        failed = [answer for answer in answers.values() if answer.problem is not None]
        elapsed = time.monotonic() - start
        if not failed or not all(answer.retry for answer in failed) or elapsed >= seconds:
            return list(answers.values())
        if time.monotonic() - reported >= _REPORT_INTERVAL:
            reported = time.monotonic()
            for answer in failed:
                report(f"waiting for the engine at {answer.url}, {elapsed:.0f} of {seconds:.0f} s: it {answer.problem}")
        await asyncio.sleep(min(_INTERVAL, max(0.0, seconds - elapsed)))


async def _ask(transport: HTTPTransport, url: str, headers: Mapping[str, str]) -> Answer:
    target = RequestTarget(base_url(url), MODELS_PATH, headers=headers)
    timeouts = {"connect_timeout": TIMEOUT, "head_timeout": TIMEOUT, "total_timeout": TIMEOUT}
    try:
        with await transport.send(target.origin, target.get_request, **timeouts) as response:
            status, page = response.status, await response.read(_MAX_PAGE)
    except EngineError as error:
        return Answer(url, problem=_in_words(error), retry=not isinstance(error.__cause__, ssl.SSLError))
    if status in (401, 403):
        what = "key" if headers else "request without a key"
        return Answer(url, problem=f"refuses the {what} with status {status}", wants_key=True)
    models = read_models(page) if status == _OK else None
    if models is None:
        # vLLM listens before it has its routes; a proxy in front of it gives 502 or 503 until it is up.
        return Answer(url, problem=f"gives status {status} and no list of models", retry=status >= 500)
    if not models:
        return Answer(url, problem="lists no model", retry=True)
    return Answer(url, tuple(models))


def _in_words(error: EngineError) -> str:
    match error.__cause__:
        case ssl.SSLError() as cause:
            return f"cannot be reached over TLS ({cause.reason or cause})"
        case socket.gaierror():
            return "has an unknown host name"
        case ConnectionRefusedError() | FileNotFoundError():
            return "does not listen"
        case TimeoutError():
            return f"cannot be reached within {TIMEOUT:g} s"
        case OSError() as cause if cause.strerror:
            return f"cannot be reached ({cause.strerror})"
    if error.reason == "timeout":
        return f"does not answer within {TIMEOUT:g} s"
    return f"does not answer in HTTP ({' '.join(str(error).split())})"
