"""Real vLLM: the spans that it exports itself hang below the router's span of the attempt."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.vllm_process_tree import VllmProcessTree, running_tree
from tests.support.collector import Collector, ReceivedSpan
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = [pytest.mark.vllm, pytest.mark.vllm_all, pytest.mark.real]

CONFIGURATION = """
[[model]]
name = "tiny"

[[engine]]
name = "tiny"
model = "tiny"
url = "http://127.0.0.1:{port}"
max_model_len = 4096

[engine.launch]
target = "{models}/llama"
args = [
    "--enforce-eager",
    "--kv-cache-memory-bytes", "128M",
    "--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "--worker-extension-cls", "engines.tiny.worker_extension.SampleAsAsked",
    "--otlp-traces-endpoint", "{collector}/v1/traces",
]
env = {{ OMP_NUM_THREADS = "1", PYTHONPATH = ".", OTEL_EXPORTER_OTLP_TRACES_PROTOCOL = "http/protobuf" }}

[tracing]
endpoint = "{collector}"
"""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def traced_tree(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmProcessTree]:
    port = free_port()
    text = CONFIGURATION.format(port=port, models=os.environ.get("ROUNDHOUSE_MODELS", ""), collector=collector.url)
    folder: Path = tmp_path_factory.mktemp("traced")
    with running_tree(folder, text, {"tiny": port}) as tree:
        yield tree


async def test_the_span_of_vllm_is_a_child_of_the_attempt(traced_tree: VllmProcessTree, collector: Collector) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "The sea?"}], "max_tokens": 8}
    async with httpx.AsyncClient(base_url=traced_tree.url, timeout=60) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200

    def attempts() -> list[ReceivedSpan]:
        return [span for span in collector.spans if span.attributes.get("roundhouse.engine") and span.kind == "client"]

    (attempt,) = await eventually(attempts, timeout=30)

    def children() -> list[ReceivedSpan]:
        return [span for span in collector.spans if span.parent_id == attempt.span_id]

    (child,) = await eventually(children, timeout=30)
    assert child.trace_id == attempt.trace_id
    assert child.resource["service.name"] != "roundhouse"
    assert child.attributes["gen_ai.usage.prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]
