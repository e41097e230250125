"""Fields with which a client reaches beyond its prompt, and responses that name memory of one engine."""

import json
from typing import Any

import pytest

from router.core.endpoints.requests.engine_fields import (
    ENGINE_FIELDS,
    Handling,
    find_engine_field,
    names_cached_media,
    names_engine_memory,
)

REMOTE = {"do_remote_prefill": True, "remote_host": "10.0.0.9", "remote_port": 5600, "remote_block_ids": [1, 2]}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"kv_transfer_params": REMOTE}, "kv_transfer_params"),
        ({"kv_transfer_params": "text"}, "kv_transfer_params"),
        ({"ec_transfer_params": {"x": 1}}, "ec_transfer_params"),
        ({"disaggregated_params": {"x": 1}}, "disaggregated_params"),
        ({"bootstrap_host": "10.0.0.9"}, "bootstrap_host"),
        ({"bootstrap_room": [0]}, "bootstrap_room"),
        ({"custom_logit_processor": "80049"}, "custom_logit_processor"),
        ({"vllm_xargs": {"kv_transfer_params": "text"}}, "vllm_xargs.kv_transfer_params"),
        ({"vllm_xargs": '{"a": NaN, "kv\\u005ftransfer_params": "x"}'}, "vllm_xargs.kv_transfer_params"),  # of a form
        ({"kv_transfer_params": None, "ec_transfer_params": {}, "bootstrap_host": None}, None),
        ({"vllm_xargs": {"my_flag": 1}}, None),
        ({"vllm_xargs": "not JSON"}, None),
        ({"messages": [{"role": "user", "content": "kv_transfer_params"}]}, None),
        ({"metadata": {"kv_transfer_params": REMOTE}}, None),  # engines do not look into it
    ],
)
def test_a_field_that_makes_an_engine_connect_is_found_wherever_the_engine_reads_it(
    fields: dict[str, Any], found: str | None
) -> None:
    assert find_engine_field({"model": "llama", **fields}) == found


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}, "uuid": "a"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": [{"role": "user", "content": ["x", {"type": "text", "text": "x"}, PICTURE]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": None, "uuid": ""}]}]}, True),
        ({"input": [{"type": "function_call_output", "output": [PICTURE]}]}, True),
        ({"messages": [[{"role": "user", "content": [PICTURE]}]]}, True),
        ({"queries": {"content": [PICTURE]}}, True),
        ({"documents": ["x", {"content": [PICTURE]}]}, True),
        ({"messages": [{"role": "user", "content": [{**PICTURE, "uuid": None}]}]}, False),
        ({"messages": [{"role": "user", "uuid": "a", "content": "uuid"}], "metadata": {"uuid": "a"}}, False),
        ({"tools": [{"function": {"parameters": {"properties": {"uuid": {}}}}}], "documents": [{"uuid": "a"}]}, False),
    ],
)
def test_a_part_that_names_cached_media_is_found(fields: dict[str, Any], *, named: bool) -> None:
    assert names_cached_media(fields) is named


def test_each_field_of_the_table_has_a_reason_and_only_those_that_need_a_right_are_found() -> None:
    assert all(reason for _, reason in ENGINE_FIELDS.values())
    needing = {name for name, (handling, _) in ENGINE_FIELDS.items() if handling is Handling.NEEDS_RIGHT}
    assert {name for name in ENGINE_FIELDS if find_engine_field({name: "x"})} == needing


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params", "disaggregated_params"])
@pytest.mark.parametrize("spaces", [None, (", ", " : ")])
def test_a_response_that_names_blocks_of_an_engine_is_told_from_its_text(name: str, spaces: Any) -> None:
    def names(value: Any) -> bool:
        return names_engine_memory(json.dumps({"text": "a", name: value, "b": 1}, separators=spaces).encode())

    assert names(REMOTE)
    assert names([1])
    assert not names(None)
    assert not names({})
    assert not names_engine_memory(json.dumps({"text": json.dumps({name: REMOTE})}).encode())
    assert not names_engine_memory(b'{"my_params": {"x": 1}}')
