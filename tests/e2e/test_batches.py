"""A batch before real vLLM engines, over two routers."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.test_conversations import two_routers
from tests.e2e.vllm_process_tree import VllmProcessTree
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

COUNT = 1000
CHAT = "/v1/chat/completions"
TIMEOUT = 900.0


@pytest.fixture(scope="module")
def urls(replicas: VllmProcessTree, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Two routers with one folder."""
    folder = tmp_path_factory.mktemp("routers")
    with two_routers(replicas, folder, f'[batch]\nfolder = "{folder / "files"}"\n') as urls:
        yield urls


def run(urls: list[str], content: bytes) -> dict[str, Any]:
    """The batch at its end."""
    uploaded = httpx.post(f"{urls[0]}/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", content)})
    fields = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT, "completion_window": "1h"}
    batch = httpx.post(f"{urls[1]}/v1/batches", json=fields).json()

    def has_ended() -> bool:
        nonlocal batch
        batch = httpx.get(f"{urls[0]}/v1/batches/{batch['id']}", timeout=60).json()
        return batch["status"] in ("completed", "failed", "expired", "cancelled")

    asyncio.run(eventually(has_ended, TIMEOUT))
    return dict(batch)


def generated(replicas: VllmProcessTree) -> float:
    return sum(replicas.metric(name, "vllm:request_success_total") for name in replicas.ports)


def test_a_thousand_lines_are_answered_once_and_a_second_run_asks_no_engine(
    urls: list[str], replicas: VllmProcessTree
) -> None:
    content = b"".join(
        json.dumps(
            {
                "custom_id": str(number),
                "method": "POST",
                "url": CHAT,
                "body": {
                    "model": "tiny",
                    "max_tokens": 4,
                    "temperature": 0,
                    "messages": [{"role": "user", "content": f"Tell me of sea {number}."}],
                },
            }
        ).encode()
        + b"\n"
        for number in range(COUNT)
    )
    before = generated(replicas)
    batch = run(urls, content)
    assert batch["request_counts"] == {"total": COUNT, "completed": COUNT, "failed": 0, "cached": 0}
    assert generated(replicas) - before == COUNT
    output = httpx.get(f"{urls[1]}/v1/files/{batch['output_file_id']}/content").text.splitlines()
    assert sorted(int(json.loads(line)["custom_id"]) for line in output) == list(range(COUNT))
    again = run(urls, content)
    assert again["request_counts"]["cached"] == COUNT
    assert generated(replicas) - before == COUNT
