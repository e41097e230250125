"""The field `priority` of a request: an engine with vLLM's priority scheduler gets the tenant's, others get none."""

import json
from itertools import product
from typing import Any

import pytest

from router.core.endpoints.requests.request import engine_body, parse_request
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.errors import ApiError

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
INPUTS: Any = {
    "/v1/chat/completions": {"messages": MESSAGES}, "/v1/completions": {"prompt": "Hi"},
    "/v1/embeddings": {"input": "Hi"}, "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
}  # fmt: skip


def parse(path: str, **fields: Any) -> Any:
    return parse_request(ENDPOINT_BY_PATH[path], json.dumps({"model": "llama", **INPUTS[path], **fields}).encode())


@pytest.mark.parametrize("priority", [None, 0, 7, 9, -(2**63)])
def test_an_engine_gets_the_priority_of_the_tenant_once_and_the_rest_unchanged(priority: int | None) -> None:
    sent_by_clients: list[Any] = [{}, {"priority": None}, {"priority": 0}, {"priority": 7}, {"priority": -3}]
    for case in product(INPUTS, (False, True), ("llama", "served"), (None, "salt"), sent_by_clients):
        path, stream, served, salt, sent = case
        body = engine_body(parse(path, stream=stream, **sent), served, salt, priority=priority)
        plain = json.loads(engine_body(parse(path, stream=stream), served, salt))
        found = json.loads(body)
        assert body.count(b'"priority"') <= (priority is not None), case
        assert found.pop("priority", 0) == (priority or 0), case
        assert found == plain, case


def test_a_body_to_which_nothing_is_added_is_forwarded_byte_for_byte() -> None:
    body = b'{ "model":"llama", "messages":[{"role":"user","content":"Hi"}], "priority": 7 }'
    request = parse_request(ENDPOINT_BY_PATH["/v1/chat/completions"], body)
    assert engine_body(request, "llama", priority=7) is request.body
    plain = parse_request(ENDPOINT_BY_PATH["/v1/chat/completions"], body.replace(b', "priority": 7', b""))
    assert engine_body(plain, "llama") is plain.body
    assert engine_body(plain, "llama", priority=0) is plain.body
    assert engine_body(plain, "llama", priority=5) == plain.body[:-1] + b',"priority":5}'


@pytest.mark.parametrize("priority", ["1", True, 1.5, [1], {}, 2**63, -(2**63) - 1])
def test_a_priority_that_vllm_would_not_understand_is_refused(priority: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse("/v1/chat/completions", priority=priority)
    assert (refused.value.status, refused.value.param) == (400, "priority")
