"""The endpoints that an engine does not have are remembered for a minute, or until it was down."""

import logging

import pytest

from router.core.resilience.unserved_paths import MEMORY, UnservedPaths
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig


def test_a_path_is_remembered_for_a_while_after_the_last_answer() -> None:
    paths = UnservedPaths()
    assert not paths
    assert paths.add("/score", 10.0)
    assert not paths.add("/score", 20.0)
    assert paths
    assert paths.has("/score", 20.0 + MEMORY - 0.1)
    assert not paths.has("/score", 20.0 + MEMORY)
    assert not paths.has("/rerank", 21.0)


def test_a_path_that_is_missing_again_after_a_while_is_not_the_first_answer() -> None:
    paths = UnservedPaths()
    assert [paths.add("/score", time) for time in (0.0, 2 * MEMORY)] == [True, False]
    paths.discard("/score")
    paths.discard("/rerank")
    assert not paths.has("/score", 2 * MEMORY)
    assert paths.add("/score", 2 * MEMORY)
    paths.clear()
    assert not paths.has("/score", 2 * MEMORY)
    assert paths.add("/score", 2 * MEMORY)


def test_an_engine_logs_a_missing_path_once_until_it_was_down(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(EngineConfig(name="e", model="m", task="any", url="http://127.0.0.1:1", served_model="m"))
    with caplog.at_level(logging.INFO, "roundhouse.engines"):
        for now in (0.0, 1.0, 2 * MEMORY):
            engine.note_unserved("/score", now)
        engine.update_status(up=True)
        assert engine.unserved_paths
        engine.update_status(up=False)
        assert not engine.unserved_paths
        engine.note_unserved("/score", 2 * MEMORY)
    assert [record.getMessage() for record in caplog.records].count("engine e does not serve /score") == 2
