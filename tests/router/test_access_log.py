"""How log lines are written: access lines together, and in their order among the others."""

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from router.access_log import ACCESS, AccessLog, set_up_logging
from router.core.types import Endpoint
from router.flow.exchange import Exchange


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("roundhouse", "uvicorn")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    switches = logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
    logging.logThreads, logging.logProcesses, logging.logMultiprocessing, logging._srcfile = switches


def exchange(number: int) -> Exchange:
    return Exchange(endpoint=Endpoint.CHAT, request_id=f"r{number}", begun=0.0)


async def test_access_lines_are_written_in_the_next_turn_and_keep_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging("text")
    log = AccessLog("text")
    log.write(exchange(1), 1.0)
    log.write(exchange(2), 1.0)
    assert capsys.readouterr().err == ""
    await asyncio.sleep(0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" ")[2:4] for line in lines] == [[ACCESS, "request=r1"], [ACCESS, "request=r2"]]
    log.write(exchange(3), 1.0)
    logging.getLogger("roundhouse.store").warning("something else")
    assert ["r3" in line for line in capsys.readouterr().err.splitlines()] == [True, False]


async def test_access_lines_are_json_where_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    AccessLog("json").write(exchange(1), 1.0)
    logging.getLogger("roundhouse.store").warning("something else")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["request"], first["outcome"]) == ("r1", "complete")
    assert second["message"] == "something else"


async def test_a_log_that_nobody_takes_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_logging("text")
    (handler,) = logging.getLogger("roundhouse").handlers
    assert isinstance(handler, logging.StreamHandler)

    def broken(_: str) -> int:
        raise BrokenPipeError

    with monkeypatch.context() as patched:
        patched.setattr(handler.stream, "write", broken)
        AccessLog("text").write(exchange(1), 1.0)
        await asyncio.sleep(0)
