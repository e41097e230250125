"""Clients of streams that get no token for long, with the default settings and a virtual clock."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT

HEARTBEAT = ": heartbeat\n\n"


@pytest.fixture(scope="module")
def scenarios() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.heartbeats"], cwd=ROOT, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def texts(client: dict[str, Any]) -> str:
    return "".join(text for _, text in client["got"])


def test_a_client_without_a_token_gets_a_comment_after_15_s_also_one_that_shares_the_generation(
    scenarios: dict[str, Any],
) -> None:
    for client in scenarios["slow first token"]:
        assert client["status"] == 200
        assert client["got"][0] == [15.0, HEARTBEAT]
        assert texts(client).count(HEARTBEAT) == 1
        assert texts(client).endswith("data: [DONE]\n\n")


def test_a_client_that_gets_tokens_in_time_gets_no_comment(scenarios: dict[str, Any]) -> None:
    (client,) = scenarios["fast"]
    assert texts(client).startswith("data: ")
    assert HEARTBEAT not in texts(client)


def test_what_fails_after_a_comment_is_an_error_event(scenarios: dict[str, Any]) -> None:
    (client,) = scenarios["never"]
    *comments, (_, event) = client["got"]
    assert client["status"] == 200
    assert [text for _, text in comments] == [HEARTBEAT] * len(comments)
    assert [at for at, _ in comments] == [15.0 * number for number in range(1, len(comments) + 1)]
    assert "engine_timeout" in event
    assert "[DONE]" not in event
