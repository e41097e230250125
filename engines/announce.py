"""`roundhouse engines announce`: announces engines that something else runs, such as Kubernetes.

An engine is announced while its /health answers with 200. One that fails several times in a row is withdrawn until it
answers again: what runs it will start it again or remove it.
"""

import asyncio
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import httpx

from engines.announcer import Announcer
from engines.fleet import announcement, is_http_ready
from engines.plan import UpPlan
from engines.spec import EngineSpec
from router.shared.engines.announcements import RENEWAL_INTERVAL

_FAILURES: Final = 3
"""Failed probes in a row after which an engine is withdrawn; routers have stopped sending requests before that."""

_PROBE_TIMEOUT: Final = 4.0  # seconds


def main(plan: UpPlan) -> int:
    return asyncio.run(_announce_until_signal(plan))


async def _announce_until_signal(plan: UpPlan) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    # Another name at each start, since no lock shows whether a former process has ended.
    owner = f"{socket.gethostname()}:{secrets.token_hex(8)}"
    announcer = Announcer.connect(plan.redis, owner, _report)
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_PROBE_TIMEOUT) as client:
            await announce(plan.engines, announcer, client, stopped, _report)
    finally:
        await announcer.aclose()
    return 0


async def announce(
    specs: Sequence[EngineSpec], announcer: Announcer, client: httpx.AsyncClient, stopped: asyncio.Event,
    report: Callable[[str], None], interval: float = RENEWAL_INTERVAL,
) -> None:  # fmt: skip
    """Probes the engines every `interval` seconds until `stopped`, and renews the leases of those that answer."""
    failures: Mapping[str, int] = {spec.name: _FAILURES for spec in specs}
    while not stopped.is_set():
        ready = await asyncio.gather(*(is_http_ready(client, f"{spec.url}/health") for spec in specs))
        counts = {
            spec.name: 0 if is_ready else failures[spec.name] + 1 for spec, is_ready in zip(specs, ready, strict=True)
        }
        for spec in specs:
            if announcer.current(spec.name) is None and counts[spec.name] == 0:
                await announcer.announce(announcement(spec, spec.url))
                report(f"{spec.name} is announced at {spec.url}")
            elif announcer.current(spec.name) is not None and counts[spec.name] >= _FAILURES:
                await announcer.withdraw(spec.name)
                report(f"{spec.name} is withdrawn: its /health does not answer")
        failures = counts
        await announcer.renew()
        try:
            await asyncio.wait_for(stopped.wait(), interval)
        except TimeoutError:
            continue


def _report(line: str) -> None:
    sys.stderr.write(f"roundhouse: {line}\n")
