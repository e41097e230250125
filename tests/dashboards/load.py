"""A small load that makes every panel show something: traffic of two tenants, and failures of each kind."""

import asyncio
import json
from itertools import count
from typing import Any

import httpx

from tests.dashboards.testbed import KEYS, Testbed
from tests.support.router_server import chat_body
from tests.support.waiting import eventually

_FALLBACK = "please fall back"
_FAIL_ONCE = "please fail once"
_STATIC_DOCUMENT = "The harbour of a small town, its boats, its fog and its lamps. " * 12


class Load:
    """Sends rounds of requests; each round is over when all its responses are."""

    def __init__(self, testbed: Testbed, http: httpx.AsyncClient) -> None:
        self._testbed = testbed
        self._http = http
        self._numbers = count()

    async def prepare(self) -> None:
        """The faults that stay for the whole load."""
        for engine in (self._testbed.chat, self._testbed.code, self._testbed.code_replica):
            await engine.set_faults({"fault": "status", "code": 500, "match": _FALLBACK})

    async def run_a_batch(self) -> None:
        """Some of its lines are of the load, and one is invalid."""
        headers = {"authorization": f"Bearer {KEYS['beta']}"}
        path = "/v1/chat/completions"
        lines = [{"method": "POST", "url": path, "custom_id": str(number), "body": chat_body(f"What is {number % 5}?")}
                 for number in range(8)]  # fmt: skip
        content = "\n".join(json.dumps(line) for line in (*lines, lines[0]))
        form = {"purpose": "batch"}
        file = await self._http.post("/v1/files", data=form, files={"file": ("in.jsonl", content)}, headers=headers)
        batch = {"input_file_id": file.json()["id"], "endpoint": path, "completion_window": "1h"}
        (await self._http.post("/v1/batches", json=batch, headers=headers)).raise_for_status()

    async def round(self) -> None:
        number = next(self._numbers)
        prompts = [f"What is seen in the harbour, number {number}-{each}?" for each in range(3)]
        programs = [f"Write a Python function that adds {number} and {each}." for each in range(3)]
        misses = [self._ask(prompt, "acme") for prompt in (*prompts, *programs)]
        misses += [self._ask(prompts[0], "beta", model="mistral"), self._ask(programs[0], "beta")]
        await asyncio.gather(*misses, *self._coalesced(number))
        hits = [self._ask(prompt, "acme") for prompt in (*prompts, *programs)]
        hits += [self._ask(programs[0], "beta", stream=False), self._ask(prompts[0], "beta", model="mistral")]
        await asyncio.gather(*hits)
        await asyncio.gather(*self._failures(number), *self._queued(number))

    def _coalesced(self, number: int) -> list[Any]:
        return [self._ask(f"How is the weather, number {number}?", "acme") for _ in range(3)]

    def _failures(self, number: int) -> list[Any]:
        return [
            self._ask(f"{_FALLBACK}, number {number}", "acme"),
            self._ask(f"Not for the cache, number {number}", "acme", headers={"cache-control": "no-store, no-cache"}),
            self._ask(f"[[sim:drop after=3]] number {number}", "acme"),
            # Over the limit of requests a minute.
            *(self._ask(f"What is number {number}?", "gamma") for _ in range(3)),
        ]

    def _queued(self, number: int) -> list[Any]:
        """More than the engine takes at once."""
        return [self._ask(f"What is slow about {number}-{each}?", "acme", model="mistral") for each in range(4)]

    async def _ask(
        self, prompt: str, tenant: str, *, model: str = "llama", stream: bool = True,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        body = chat_body(f"{_STATIC_DOCUMENT}\n{prompt}", model=model, stream=stream, max_tokens=24)
        authorization = {"authorization": f"Bearer {KEYS[tenant]}"}
        # A stream that breaks off is part of the load.
        try:
            await self._http.post("/v1/chat/completions", json=body, headers=authorization | (headers or {}))
        except httpx.TransportError:
            return

    async def damage_an_entry(self) -> None:
        """Overwrites an entry in Redis and asks for it, until the router has found it damaged.

        It may not be there yet, and the router may have a copy of it for a moment.
        """
        prompt = "Which entry will be damaged?"

        async def is_found() -> bool:
            await self._ask(prompt, "acme")
            await self._testbed.damage_entries()
            await self._ask(prompt, "acme")
            page = (await self._http.get("/metrics")).raise_for_status().text
            return "\nllm_cache_entries_damaged_total 0.0\n" not in page

        await eventually(is_found)
