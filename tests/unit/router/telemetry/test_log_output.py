"""The format of log lines: a line for each record, whatever is in it."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Final

import pytest

from router.telemetry.log_output import JsonFormatter, TextFormatter, set_up_logging, with_facts
from tests.support.logging_state import logging_as_it_was

FORGED: Final = "lost\n2026-11-21 05:17:44,252 INFO roundhouse.access request=forged\r\x1b[2J\u2028\u202e\U000e0001 end"
log = logging.getLogger("roundhouse.store")


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with logging_as_it_was():
        yield


def test_a_line_of_text_has_a_time_a_level_a_logger_and_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text")
    log.warning("%d entries are lost", 3)
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING roundhouse\.store 3 entries are lost\n", capsys.readouterr().err
    )


def test_a_line_of_json_has_the_same_as_fields_and_the_facts_of_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    log.error("3 entries are lost", extra=with_facts({"entries": 3}))
    fields = json.loads(capsys.readouterr().err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields.pop("time"))
    assert fields == {"level": "error", "logger": "roundhouse.store", "message": "3 entries are lost", "entries": 3}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_message_can_look_like_a_line_of_its_own(log_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging(log_format)
    log.warning("the engine says %s", FORGED)
    written = capsys.readouterr().err
    assert len(written.splitlines()) == 1  # also counts U+2028 and others as the end of a line
    assert written.count("\n") == 1
    assert written.rstrip("\n").isprintable()
    if log_format == "text":
        assert "lost\\n2026" in written
    else:
        assert json.loads(written)["message"] == f"the engine says {FORGED}"


@pytest.mark.parametrize("library", ["asyncio", "opentelemetry.sdk.resources", "uvicorn.error"])
def test_a_warning_of_a_library_is_a_line_of_the_log(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    logging.getLogger(library).warning("%s", FORGED)
    logging.getLogger(library).info("started")
    fields = json.loads(capsys.readouterr().err)
    assert (fields["level"], fields["logger"], fields["message"]) == ("warning", library, FORGED)


def test_no_line_of_a_traceback_can_look_like_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text")
    error = ValueError(FORGED)
    log.error("it failed", exc_info=error)
    first, *rest = capsys.readouterr().err.split("\n")[:-1]
    assert first.endswith(" ERROR roundhouse.store it failed")
    assert all(line.startswith("  ") and line.isprintable() for line in rest)
    assert any("ValueError: lost" in line for line in rest)


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_name_that_is_no_utf_8_can_be_logged(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("roundhouse.server", logging.INFO, "", 0, "the file %s", ("\udcff.toml",), None)
    assert "\\udcff.toml" in formatter.format(record).encode().decode()


def test_times_are_written_with_the_milliseconds_of_each_line() -> None:
    formatter = JsonFormatter()
    prefixes = [formatter.time.line_prefix(now) for now in (1000.0, 1000.0625, 1000.0627, 1001.5)]
    assert [re.findall(r"00:16:4(\d\.\d{3})Z", prefix) for prefix in prefixes] == [
        ["0.000"], ["0.062"], ["0.062"], ["1.500"],
    ]  # fmt: skip
