"""Batches of which a part is done and the rest waits for its engine, so that tests can look at them."""

import json
from typing import Final

from tests.support.router_server import RouterServer

CHAT: Final = "/v1/chat/completions"
HELD: Final = {"fault": "stall", "after": 0, "match": "a line that is held"}
"""For an engine: what makes it keep the second half of `held_lines`."""


def held_lines() -> bytes:
    """Of fifty lines, half are equal. Fifty others follow, which an engine with HELD keeps: all are of one range."""
    questions = [f"How deep is sea {number if number < 25 else 'zero'}?" for number in range(50)]
    questions += [f"How deep is {number}, a line that is held?" for number in range(50)]
    lines = [
        {
            "custom_id": f"n{number}",
            "method": "POST",
            "url": CHAT,
            "body": {"model": "llama", "messages": [{"role": "user", "content": question}]},
        }
        for number, question in enumerate(questions)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def begin_batch(router: RouterServer, content: bytes, tenant: str = "") -> str:
    """The id of the batch."""
    headers = {"x-tenant-id": tenant} if tenant else {}
    file = await router.http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}, headers=headers
    )
    body = {"input_file_id": file.raise_for_status().json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    created = await router.http.post("/v1/batches", json=body, headers=headers)
    return str(created.raise_for_status().json()["id"])
