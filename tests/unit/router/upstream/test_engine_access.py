"""Whether an engine lets the router in."""

import logging
from collections.abc import Callable
from functools import partial

import pytest

from router.upstream.engine import Engine
from router.upstream.engine_access import EngineAccess
from router.upstream.engine_config import EngineConfig


def engine() -> Engine:
    return Engine(EngineConfig(name="a", model="m", task="any", url="http://10.0.0.9:8000", served_model="m"))


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([("request", 401)], 401),
        ([("request", 407)], 407),
        ([("request", 403)], None),  # it may be about that request
        ([("request", 403), ("models", 403)], 403),
        ([("request", 403), ("models", 200)], None),
        ([("request", 403), ("models", 200), ("models", 403)], None),  # without a key, it is not about the key
        ([("keyed models", 200), ("keyed models", 403)], 403),
        ([("keyed models", 200), ("keyed models", 403), ("keyed models", 200)], None),
        ([("keyed models", 403), ("keyed models", 403)], None),  # some APIs never show it
        ([("models", 401)], 401),
        ([("models", 403)], None),  # a proxy may refuse the path
        ([("models", 404)], None),
        ([("health", 401)], 401),
        ([("health", 403)], 403),
        ([("health", 503)], None),
        ([("request", 401), ("models", 403)], 403),
        ([("request", 401), ("models", 503)], 401),
        ([("request", 401), ("models", 404)], None),
        ([("request", 401), ("models", 200)], None),
    ],
)
def test_what_an_engines_answers_say_about_the_key(answers: list[tuple[str, int]], refused: int | None) -> None:
    access = EngineAccess()
    ask: dict[str, Callable[[int], None]] = {
        "request": access.on_request,
        "models": access.on_models,
        "keyed models": partial(access.on_models, has_key=True),
        "health": access.on_health,
    }
    for kind, status in answers:
        ask[kind](status)
    assert access.refused == refused


def test_each_change_of_state_is_logged_once_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "roundhouse.engines")
    one = engine()
    one.update_status(up=True)
    for _ in range(2):
        one.update_status(up=False, cause="connection refused")
    one.update_status(up=True)
    for _ in range(2):
        one.note_refused(401)
    assert (one.state, one.up) == ("refused", False)
    one.access.reset()
    one.update_status(up=False, cause="timeout")
    one.update_status(up=True)
    lines = [(record.levelname, record.getMessage().partition(": it gets")[0]) for record in caplog.records]
    assert lines == [
        ("INFO", "engine a is up"),
        ("WARNING", "engine a is down: connection refused"),
        ("INFO", "engine a is up"),
        ("WARNING", "engine a refuses the router's key (status 401)"),
        ("WARNING", "engine a is down: timeout"),
        ("INFO", "engine a is up"),
    ]
