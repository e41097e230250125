"""Redis, four simulated engines with drafts, a router and a Prometheus with the rules of deploy/prometheus."""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from router.shared.engines.announcements import AnnouncedEngine, write_command
from tests.support.paths import ROOT
from tests.support.prometheus_process import PrometheusServer
from tests.support.redis_process import RedisServer
from tests.support.router_process import RouterProcess
from tests.support.router_server import LLAMA, MISTRAL
from tests.support.simulated_engine import SimulatedEngine

KEYS: Final = {tenant: f"rh-{tenant}-key" for tenant in ("acme", "beta", "gamma")}
_LIMITS: Final = {"gamma": "requests_per_minute = 1\n"}
_RESTART_WINDOW: Final = "3s"
"""Of the rule that counts restarts, in place of an hour."""


class Testbed:
    """A context manager; `router` and `prometheus` run inside."""

    __test__ = False
    chat: SimulatedEngine
    code: SimulatedEngine
    code_replica: SimulatedEngine
    mistral: SimulatedEngine
    router: RouterProcess
    prometheus: PrometheusServer

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._redis = RedisServer()
        self._stack = AsyncExitStack()
        self._restarts = 0

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.callback(self._redis.remove)
            await self._redis.start()
            await self._start_engines(stack)
            await self.announce()
            self.router = RouterProcess(self._folder, self._config())
            stack.callback(self.router.kill)
            self.router.start()
            await self.router.wait_until_ready()
            self.prometheus = await stack.enter_async_context(
                PrometheusServer(self._folder, [self.router.url], rule_files=self._rules())
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def announce(self) -> None:
        """As `roundhouse up` does it where NVML tells power and temperature; each time with one more restart."""
        engine = AnnouncedEngine(
            name="llama-chat", model="llama", task="chat", url=self.chat.url, served_model=LLAMA, has_draft=True,
            capacity=0.9, temperature_celsius=61.0, power_watts=280.0, restarts={"stalled": self._restarts},
        )  # fmt: skip
        self._restarts += 1
        await self._redis.command(*_text(write_command("testbed", [engine])))

    async def damage_entries(self) -> None:
        for key in await self._redis.command("KEYS", "rh:1:acme:llama:*"):
            if await self._redis.command("TYPE", key) == "hash":
                await self._redis.command("HSET", key, "checksum", "0" * 16)

    async def _start_engines(self, stack: AsyncExitStack) -> None:
        summary = {"per_request_spec_decode_metrics": "summary", "tokens_per_second": 150, "ttft_ms": 20}
        self.chat = SimulatedEngine(LLAMA, draft="d", acceptance=0.8, code_acceptance=0.3, **summary)
        code = {
            "draft": "d",
            "acceptance": 0.2,
            "code_acceptance": 0.8,
            "enable_prompt_tokens_details": True,
            **summary,
        }
        # Two replicas, so that there is a choice.
        self.code, self.code_replica = SimulatedEngine(LLAMA, **code), SimulatedEngine(LLAMA, **code)
        # A draft that never helps, so that the router finds that it does not pay.
        self.mistral = SimulatedEngine(MISTRAL, draft="d", acceptance=0.0, **summary)
        engines = (self.chat, self.code, self.code_replica, self.mistral)
        await asyncio.gather(*(stack.enter_async_context(engine) for engine in engines))

    def _config(self) -> str:
        tables = [
            '[router]\ndrain = "0s"',
            f'[batch]\nfolder = "{self._folder / "files"}"',
            f'[cache]\nurl = "{self._redis.url}"\ntimeout = "2500ms"\nretry = "20ms"',
            _tenants(),
            '[[model]]\nname = "llama"\nfallback = "mistral"\nauto = ["chat", "code"]',
            '[[model]]\nname = "mistral"\nwake = "10m"',
            _engine("llama-chat", "llama", "chat", self.chat, LLAMA, draft="chat-draft"),
            _engine("llama-code", "llama", "code", self.code, LLAMA, draft="code-draft"),
            _engine("llama-code-2", "llama", "code", self.code_replica, LLAMA, draft="code-draft"),
            _engine(
                "mistral", "mistral", "any", self.mistral, MISTRAL, draft="useless-draft", rest="max_in_flight = 1"
            ),
        ]
        return "\n\n".join(tables)

    def _rules(self) -> list[Path]:
        rules = self._folder / "recording.rules.yml"
        text = (ROOT / "deploy/prometheus/recording.rules.yml").read_text()
        assert "offset 1h" in text
        rules.write_text(text.replace("offset 1h", f"offset {_RESTART_WINDOW}"))
        return [rules, ROOT / "deploy/prometheus/alerts.rules.yml"]


def _engine(
    name: str, model: str, task: str, engine: SimulatedEngine, served: str, *, draft: str, rest: str = ""
) -> str:
    return (
        f'[[engine]]\nname = "{name}"\nmodel = "{model}"\ntask = "{task}"\nurl = "{engine.url}"\n'
        f'served_model = "{served}"\n{rest}\n[engine.launch]\ntarget = "{served}"\ndraft = "{draft}"'
    )


def _tenants() -> str:
    tables = ['[auth]\nmode = "keys"']
    for tenant, key in KEYS.items():
        digest = hashlib.sha256(key.encode()).hexdigest()
        tables.append(f'[[tenant]]\nname = "{tenant}"\nkeys = ["sha256:{digest}"]\n{_LIMITS.get(tenant, "")}')
    return "\n\n".join(tables)


def _text(command: tuple[object, ...]) -> list[str | int]:
    return [
        word.decode() if isinstance(word, bytes) else word for word in command if isinstance(word, bytes | str | int)
    ]
