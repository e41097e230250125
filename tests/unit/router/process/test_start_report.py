"""What the lines of the start say, whatever the configuration."""

import logging
from typing import Final

import pytest

from router.process.start_report import MAX_NAMES, EngineCount, log_ready, log_start
from router.settings import Settings, parse
from router.shared.connection.redis import ServerReport, ask_server
from tests.support.configurations import MINIMAL

ENGINE: Final = '[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://e:1"'
UP: Final = ServerReport(version="7.2.4")


def start_lines(text: str, redis: ServerReport, caplog: pytest.LogCaptureFixture) -> list[str]:
    settings: Settings = parse(text, {})
    with caplog.at_level(logging.INFO, "roundhouse.server"):
        log_start(settings, redis)
    return caplog.messages


def test_a_long_list_of_models_and_engines_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    models = "".join(f'[[model]]\nname = "m{number}"\n' for number in range(12))
    engines = "".join(
        f'[[engine]]\nname = "e{number}"\nmodel = "m{0 if number < 20 else number - 19}"\nurl = "http://e:{number}"\n'
        for number in range(1, 31)
    )
    line = start_lines(models + engines, UP, caplog)[2]
    assert line.startswith("12 models, 30 engines: m0 (e1, e2, e3, e4, e5, e6, e7, e8, and 11 more), m1 (e20), ")
    assert line.endswith(", and 4 more")
    assert line.count("(") == MAX_NAMES


def test_a_cluster_is_shown_with_its_primaries(caplog: pytest.LogCaptureFixture) -> None:
    text = f'[cache]\nurl = "redis+cluster://:secret@a:7000,b:7001"\n{MINIMAL}'
    line = start_lines(text, ServerReport(None, "7.2.4", 3), caplog)[1]
    assert line.startswith("Redis at redis+cluster://a:7000,b:7001: version 7.2.4, 3 primaries. ")


async def test_a_redis_that_is_down_is_told_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    url = "redis://user:hunter2@127.0.0.1:1/0"
    line = start_lines(f'[cache]\nurl = "{url}"\n{MINIMAL}', await ask_server(url, timeout=5), caplog)[1]
    assert line.startswith("Redis at redis://127.0.0.1:1: does not answer (ConnectionRefusedError)")
    assert "hunter2" not in caplog.text


def test_several_workers_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    assert ": 2 workers, pid " in start_lines(f"[router]\nworkers = 2\n{MINIMAL}", UP, caplog)[0]


def test_a_router_without_the_redis_of_up_hears_who_starts_it(caplog: pytest.LogCaptureFixture) -> None:
    lines = start_lines(MINIMAL, ServerReport("does not answer (FileNotFoundError)"), caplog)
    assert lines[3].startswith('cache.url = "embedded" is the Redis of `roundhouse up`: `serve` starts none')
    assert "redis://127.0.0.1:6379" in lines[3]


def test_an_ipv6_address_is_a_url(caplog: pytest.LogCaptureFixture) -> None:
    line = start_lines(f'[router]\nhost = "::1"\n{MINIMAL}', UP, caplog)[0]
    assert " starts on http://[::1]:8080: 1 worker" in line


@pytest.mark.parametrize(
    ("up", "total", "said"),
    [
        (0, 2, "no engine is up, so only hits are answered"),
        (1, 1, "1 of 1 engine is up"),
        (1, 3, "1 of 3 engines are up"),
        (3, 3, "3 of 3 engines are up"),
    ],
)
def test_the_engines_that_are_up_are_counted(up: int, total: int, said: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roundhouse.server"):
        log_ready(parse(MINIMAL, {}), EngineCount(up, total))
    assert caplog.messages[0].endswith(f"; {said}")


def test_a_router_that_refuses_every_request_is_not_ready_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roundhouse.server"):
        log_ready(parse(MINIMAL, {}), EngineCount(1, 1, closed="no mode"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "not ready: Roundhouse listens on http://127.0.0.1:8080, but refuses every request: no mode")
    ]


def test_engines_that_refuse_the_key_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roundhouse.server"):
        log_ready(parse(MINIMAL, {}), EngineCount(1, 3, ("a", "b")))
    assert (caplog.records[0].levelname, caplog.messages[0]) == (
        "WARNING",
        "the router's key is refused by a, b: see api_key of [[engine]]",
    )


def test_engines_that_are_started_on_demand_are_no_reason_for_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "roundhouse.server"):
        log_ready(parse(f'[[model]]\nname = "m"\nwake = "30m"\n{ENGINE}', {}), EngineCount(0, 1))
        log_ready(parse(f'[[model]]\nname = "m"\n{ENGINE}', {}), EngineCount(0, 1))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert caplog.messages[0].endswith("no engine is up, and requests wait for one to start")
