"""Batches of a scenario: files of chat requests, and the batch objects."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tests.support.router_server import RouterClient, chat_body

CHAT: Final = "/v1/chat/completions"


def batch_lines(prompts: Iterable[str], **fields: Any) -> bytes:
    requests = [
        {"custom_id": str(number), "method": "POST", "url": CHAT, "body": chat_body(prompt, **fields)}
        for number, prompt in enumerate(prompts)
    ]
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


class WorldBatch:
    """One that a tenant has begun at a router."""

    def __init__(self, router: RouterClient, id_: str, headers: Mapping[str, str] | None) -> None:
        self._router = router
        self._headers = headers
        self.id = id_

    async def shown(self) -> dict[str, Any]:
        answer = await self._router.http.get(f"/v1/batches/{self.id}", headers=self._headers)
        shown: dict[str, Any] = answer.raise_for_status().json()
        return shown

    async def counts(self) -> dict[str, int]:
        counts: dict[str, int] = (await self.shown())["request_counts"]
        return counts

    async def is_complete(self) -> bool:
        return bool((await self.shown())["status"] == "completed")

    async def results(self) -> list[dict[str, Any]]:
        """Those of its output file."""
        id_ = (await self.shown())["output_file_id"]
        answer = await self._router.http.get(f"/v1/files/{id_}/content", headers=self._headers)
        return [json.loads(line) for line in answer.raise_for_status().content.splitlines()]


async def begin_batch(
    router: RouterClient, content: bytes, *, headers: Mapping[str, str] | None = None, **fields: Any
) -> WorldBatch:
    """`fields` are those of the request for the batch."""
    files = {"file": ("in.jsonl", content)}
    uploaded = await router.http.post("/v1/files", data={"purpose": "batch"}, files=files, headers=headers)
    id_ = uploaded.raise_for_status().json()["id"]
    body = {"input_file_id": id_, "endpoint": CHAT, "completion_window": "7d", **fields}
    created = await router.http.post("/v1/batches", json=body, headers=headers)
    return WorldBatch(router, created.raise_for_status().json()["id"], headers)
