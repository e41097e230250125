"""Asks engines which models they serve, once or until they are up."""

import asyncio
import math
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.checks.pages import CHECK_TIMEOUT, explain_failure, get_page
from router.checks.words import Fixes
from router.discovery.models import read_models
from router.discovery.plan import Answer
from router.net.client.errors import EngineError
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from router.settings.addresses import base_url
from router.upstream.engine_kinds import MODELS_PATH

_INTERVAL: Final = 1.0  # seconds between two questions to an engine that is not up
_REPORT_INTERVAL: Final = 10.0  # seconds
_OK: Final = 200
_FIXES: Final = Fixes(
    start="start it, or correct the URL",
    correct_host="correct the host of the URL",
    without_tls="write http:// in place of https://",
    trust="set ca_file in its [[engine]] to its authority's certificate",
    client_certificate="put it behind a proxy that has one; the router sends no certificate of its own",
)


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
                report(f"waiting for the engine at {answer.url}, {elapsed:.0f} of {seconds:.0f} s: {answer.problem}")
        await asyncio.sleep(min(_INTERVAL, max(0.0, seconds - elapsed)))


async def _ask(transport: HTTPTransport, url: str, headers: Mapping[str, str]) -> Answer:
    target = RequestTarget(base_url(url), MODELS_PATH, headers=headers)
    try:
        status, page = await get_page(transport, target, timeout=CHECK_TIMEOUT)
    except EngineError as error:
        problem = explain_failure(error, _FIXES)
        if isinstance(error.__cause__, ssl.SSLError):
            return Answer(url, problem=f"{problem.note}; {problem.fix}")
        return Answer(url, problem=problem.note, retry=True)
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
