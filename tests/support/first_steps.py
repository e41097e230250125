"""Helpers for the tests of `init` and of `serve` without a file."""

import json
from collections.abc import Sequence
from typing import Any

from tests.support.foreign_script import ForeignScript


def models_page(*names: str, owned_by: str = "vllm") -> str:
    data: Sequence[dict[str, Any]] = [
        {"id": name, "object": "model", "owned_by": owned_by, "root": name, "parent": None, "max_model_len": 4096}
        for name in names
    ]
    return json.dumps({"object": "list", "data": data})


def engine_of(*names: str, api_key: str | None = None) -> ForeignScript:
    """A server like vLLM, which lists these models and answers chats with any."""
    return ForeignScript(paths={"/v1/models": models_page(*names), "/health": ""}, api_key=api_key)
