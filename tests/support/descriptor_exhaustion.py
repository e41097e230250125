"""Runs a router in a process without free file descriptors; a program, since the limit is one of the whole process.

Prints the responses to clients and the states of breakers and probe as JSON.
"""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

import uvloop

from tests.support.raw_http import VERSION_REQUEST, RawResponse, connect, http_request
from tests.support.router_server import RouterServer, chat_body, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import ROLE_FRAME, chat_frame
from tests.support.waiting import eventually


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Lets no descriptor be opened, not even with a number that is closed meanwhile: 0 to 2 stay open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def error_summary(answer: RawResponse) -> dict[str, Any]:
    error = json.loads(answer.body)["error"]
    return {"status": answer.status, "retry_after": b"\r\nretry-after: " in answer.head, **error}


async def main(redis_url: str) -> dict[str, Any]:
    engine = ScriptedEngine(ROLE_FRAME, chat_frame(content="a"), hold=True)
    await engine.start()
    report: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        table = {"scripted": ("llama", "any", engine.url)}
        router = await stack.enter_async_context(RouterServer(router_config(redis_url, table)))
        first, second, third = [await stack.enter_async_context(connect(router.port)) for _ in range(3)]
        for connection in (first, second, third):
            connection.write(VERSION_REQUEST)
            await connection.read_response()
        runtime = router.application._runtime
        with no_free_descriptors():
            first.write(http_request(chat_body("one", stream=True)))  # reuses the pooled connection of the probe
            await eventually(lambda: len(engine.bodies) == 1)
            failures = []
            for number in range(8):  # more failures than a breaker needs to open
                second.write(http_request(chat_body(f"other {number}", stream=bool(number % 2))))
                failures.append(error_summary(await second.read_response()))
            # A round of probes that fails for want of descriptors must not mark engines as down.
            await runtime._probe.check()
            report["failures"] = failures
            report["up"] = [engine.up for engine in runtime.catalog.engines.values()]
            report["breakers"] = [runtime.engines.breakers.state(name).name for name in runtime.catalog.engines]
            third.write(http_request(method=b"GET", path=b"/metrics"))
            page = (await third.read_response()).body.decode()
        report["retries"] = [line for line in page.splitlines() if line.startswith("llm_retries_total")]
        report["rejected"] = [line for line in page.splitlines() if line.startswith("llm_requests_rejected_total")]
        third.write(http_request(chat_body("later", stream=True)))
        await eventually(lambda: len(engine.bodies) == 2)
        for connection in (first, second, third):
            connection.writer.close()
    await engine.stop()
    return report


if __name__ == "__main__":
    sys.stdout.write(json.dumps(uvloop.run(main(sys.argv[1]))))
