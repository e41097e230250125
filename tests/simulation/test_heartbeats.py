"""Clients of streams that get no token for long, with the default settings and a virtual clock."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.paths import ROOT

HEARTBEAT = ": heartbeat\n\n"
PING = ": ping\n\n"


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


def comments(client: dict[str, Any]) -> list[Any]:
    return [piece for piece in client["got"] if piece[1].startswith(":")]


def test_an_engines_comments_are_passed_on_from_the_first_heartbeat_on_and_never_stored(
    scenarios: dict[str, Any],
) -> None:
    initiator, joined, elsewhere, later = scenarios["comments"]
    # The comment at 5 s comes before the heartbeat; those at 20 and 24 s take the place of one; that at 55 s is in the
    # stream, and so reaches the clients at other routers.
    assert comments(initiator) == [[15.0, HEARTBEAT], [20.0, PING], [24.0, PING], [39.0, HEARTBEAT], [55.0, PING]]
    assert comments(joined) == [[15.0, HEARTBEAT], [19.0, PING], [23.0, PING], [38.0, HEARTBEAT], [54.0, PING]]
    assert comments(elsewhere) == [[15.0, HEARTBEAT], [30.0, HEARTBEAT], [45.0, HEARTBEAT], [53.0, PING]]
    assert (later["cache"], comments(later)) == ("HIT", [])
    for client in scenarios["comments"]:
        tokens = [text for _, text in client["got"] if not text.startswith(":")]
        assert "".join(tokens).count('"role":"assistant"') == 1
        assert tokens[-1].endswith("data: [DONE]\n\n")


def test_another_engine_takes_over_after_comments(scenarios: dict[str, Any]) -> None:
    (client,) = scenarios["comments, then another engine"]
    assert comments(client) == [[15.0, HEARTBEAT], [20.0, PING]]
    assert "g1." not in texts(client)
    assert texts(client).count('"role":"assistant"') == 1
    assert texts(client).endswith("data: [DONE]\n\n")


def test_a_reload_turns_heartbeats_off_and_with_them_the_comments_before_the_first_token(
    scenarios: dict[str, Any],
) -> None:
    (client,) = scenarios["turned off"]
    assert comments(client) == []
    assert client["got"][0][0] == 28.0
    assert texts(client).endswith("data: [DONE]\n\n")


def test_a_client_in_the_queue_gets_comments_and_the_refusal_as_an_error_event_of_its_endpoint(
    scenarios: dict[str, Any],
) -> None:
    _, chat, messages = scenarios["full"]
    for client, heartbeat in ((chat, HEARTBEAT), (messages, 'event: ping\ndata: {"type": "ping"}\n\n')):
        assert client["status"] == 200
        assert client["got"][:-1] == [[15.0, heartbeat], [30.0, heartbeat]]
        assert client["got"][-1][0] == 40.0
    error = json.loads(chat["got"][-1][1].removeprefix("data: "))["error"]
    assert error["code"] == "queue_timeout"
    event, data = messages["got"][-1][1].split("\n", 1)
    assert event == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "overloaded_error"
