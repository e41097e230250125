"""Log output: access lines are batched, and keep their order among other lines."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from router.core.endpoints.chat import CHAT
from router.core.types import CacheStatus
from router.flow.exchange import AttemptFacts, Exchange
from router.flow.request_kind import request_kind
from router.net.client.errors import EngineError
from router.telemetry.access_log import AccessLog
from router.telemetry.log_output import ACCESS_LOGGER, set_up_logging
from tests.support.chosen_prompt import chosen_prompt
from tests.support.inflight_factory import generation_record
from tests.support.logging_state import logging_as_it_was
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with logging_as_it_was():
        yield


def exchange(number: int) -> Exchange:
    return Exchange(endpoint=CHAT, request_id=f"r{number}", started_at=0.0)


def write(log: AccessLog, exchange: Exchange) -> None:
    log.write(log.line_template(request_kind(exchange)), exchange, 1.0)


def flush() -> None:
    for handler in logging.getLogger("roundhouse").handlers:
        handler.flush()


TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"  # RFC 3339


def generated_exchange() -> Exchange:
    """It has the facts that only some requests have."""
    facts = completed_exchange(first_token=0.5)
    facts.key_id, facts.trace_id = "0f786551", "0af7651916cd43dd8448eb211c80319c"
    facts.generation = generation_record("acme", model="m", log_odds=-3.0, stream=True)
    facts.generation.attempts = [AttemptFacts(engine=name, sent_at=0.0) for name in ("a", "b")]
    facts.generation.attempts[0].failed_before_token(EngineError("timeout", "it fails"), 0.25)
    return facts


def slow_exchange() -> Exchange:
    """Its time has all parts."""
    facts = completed_exchange(first_token=0.5)
    facts.lookup_seconds = 0.01
    facts.generation = generation = generation_record("acme", model="m", log_odds=-3.0, stream=True)
    generation.wait_seconds, generation.queue_seconds, generation.first_token_at = 0.02, 0.03, 0.5
    generation.attempts = [AttemptFacts(engine="a", sent_at=0.1), AttemptFacts(engine="b", sent_at=0.6)]
    generation.attempts[0].connect_seconds = 0.005
    generation.attempts[0].failed_after_token(EngineError("lost", "it fails"), 0.55)
    return facts


def hit_from_redis() -> Exchange:
    facts = completed_exchange(first_token=None)
    facts.cache_status, facts.miss_reason, facts.age, facts.lookup_seconds = CacheStatus.HIT, None, 7, 0.0123
    return facts


def chosen_exchange() -> Exchange:
    """Its engine was chosen by estimates."""
    facts = generated_exchange()
    assert facts.generation is not None
    facts.generation.placement = chosen_prompt(prompt_tokens=12_000, cached_tokens=11_160, ttft=0.0421)
    return facts


def coalesced_exchange() -> Exchange:
    facts = chosen_exchange()
    facts.cache_status, facts.miss_reason = CacheStatus.COALESCED, None
    return facts


def completed_exchange(*, first_token: float | None) -> Exchange:
    facts = exchange(1)
    facts.tenant, facts.model, facts.engine, facts.task, facts.stream = "acme", "m", "e", "chat", True
    facts.cache_status, facts.miss_reason, facts.key, facts.status = CacheStatus.MISS, "new", "rh:1:acme:m:0:0:0", 200
    facts.prompt_tokens, facts.completion_tokens, facts.first_token_at = 3, 4, first_token
    return facts


async def test_access_lines_are_written_together_soon_and_keep_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    set_up_logging("text")
    log = AccessLog("text")
    write(log, exchange(1))
    write(log, exchange(2))
    assert capsys.readouterr().err == ""
    lines: list[str] = []

    async def written() -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return bool(lines)

    await eventually(written)
    assert [line.split(" ")[3:5] for line in lines] == [[ACCESS_LOGGER, "request=r1"], [ACCESS_LOGGER, "request=r2"]]
    write(log, exchange(3))
    logging.getLogger("roundhouse.store").warning("something else")
    assert ["r3" in line for line in capsys.readouterr().err.splitlines()] == [True, False]


LAST_WORDS = """
import asyncio
from router.telemetry.access_log import AccessLog
from router.telemetry.log_output import set_up_logging
from router.core.endpoints.chat import CHAT
from router.flow.exchange import AttemptFacts, Exchange
from router.flow.request_kind import request_kind
from router.net.client.errors import EngineError
from router.telemetry.log_output import ACCESS_LOGGER, set_up_logging

async def main():
    set_up_logging("text")
    log, exchange = AccessLog("text"), Exchange(endpoint=CHAT, request_id="last", started_at=0.0)
    log.write(log.line_template(request_kind(exchange)), exchange, 1.0)

asyncio.run(main())
"""


def test_a_line_that_is_queued_when_the_process_ends_is_written_then() -> None:
    ended = subprocess.run([sys.executable, "-c", LAST_WORDS], capture_output=True, text=True, check=True)
    assert [line.split(" ")[3:5] for line in ended.stderr.splitlines()] == [[ACCESS_LOGGER, "request=last"]]


async def test_access_lines_are_json_where_the_others_are(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("json")
    write(AccessLog("json"), exchange(1))
    logging.getLogger("roundhouse.store").warning("something else")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["request"], first["outcome"]) == ("r1", "complete")
    assert second["message"] == "something else"


LINES: Final = [
    (
        completed_exchange(first_token=0.5),
        (
            "request=r1 tenant=acme path=/v1/chat/completions status=200 outcome=complete ms=1000.00 cache=MISS "
            "model=m task=chat stream=yes engine=e prompt_tokens=3 completion_tokens=4 ttft_ms=500.00 reason=new "
            "key=rh:1:acme:m:0:0:0"
        ),
    ),
    (
        generated_exchange(),
        (
            "request=r1 tenant=acme key_id=0f786551 path=/v1/chat/completions status=200 outcome=complete ms=1000.00 "
            "cache=MISS model=m task=chat stream=yes score=0.0474 engine=e attempts=2 engine_ms=1000.00 "
            "tried=a:timeout:250,b:ok prompt_tokens=3 completion_tokens=4 ttft_ms=500.00 reason=new "
            "trace_id=0af7651916cd43dd8448eb211c80319c "
            "key=rh:1:acme:m:0:0:0"
        ),
    ),
    (
        chosen_exchange(),
        (
            "request=r1 tenant=acme key_id=0f786551 path=/v1/chat/completions status=200 outcome=complete ms=1000.00 "
            "cache=MISS model=m task=chat stream=yes score=0.0474 engine=e attempts=2 prefix=0.93 "
            "expected_ttft_ms=42.10 engine_ms=1000.00 tried=a:timeout:250,b:ok prompt_tokens=3 "
            "completion_tokens=4 ttft_ms=500.00 reason=new "
            "trace_id=0af7651916cd43dd8448eb211c80319c key=rh:1:acme:m:0:0:0"
        ),
    ),
    (
        coalesced_exchange(),
        (
            "request=r1 tenant=acme key_id=0f786551 path=/v1/chat/completions status=200 outcome=complete ms=1000.00 "
            "cache=COALESCED model=m task=chat stream=yes score=0.0474 engine=e engine_ms=1000.00 "
            "tried=a:timeout:250,b:ok prompt_tokens=3 completion_tokens=4 ttft_ms=500.00 "
            "trace_id=0af7651916cd43dd8448eb211c80319c key=rh:1:acme:m:0:0:0"
        ),
    ),
    (
        slow_exchange(),
        (
            "request=r1 tenant=acme path=/v1/chat/completions status=200 outcome=complete ms=1000.00 cache=MISS "
            "model=m task=chat stream=yes score=0.0474 engine=e attempts=2 lookup_ms=10.00 wait_ms=20.00 "
            "queue_ms=30.00 connect_ms=5.00 first_token_ms=400.00 engine_ms=850.00 tried=a:lost:450,b:ok "
            "prompt_tokens=3 completion_tokens=4 ttft_ms=500.00 reason=new key=rh:1:acme:m:0:0:0"
        ),
    ),
    (
        hit_from_redis(),
        (
            "request=r1 tenant=acme path=/v1/chat/completions status=200 outcome=complete ms=1000.00 cache=HIT "
            "model=m task=chat stream=yes engine=e prompt_tokens=3 completion_tokens=4 lookup_ms=12.30 "
            "key=rh:1:acme:m:0:0:0"
        ),
    ),
    (
        exchange(2),
        "request=r2 tenant=default path=/v1/chat/completions status=0 outcome=complete ms=1000.00 cache=NONE",
    ),
]


@pytest.mark.parametrize(("facts", "line"), LINES)
async def test_a_line_has_only_the_known_fields(facts: Exchange, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    for log_format in ("text", "json"):
        set_up_logging(log_format)
        write(AccessLog(log_format), facts)
        flush()
    text, in_json = capsys.readouterr().err.splitlines()
    assert text.split(f" {ACCESS_LOGGER} ")[1] == line
    fields = json.loads(in_json)
    assert re.fullmatch(TIME, fields.pop("time"))
    assert (fields.pop("level"), fields.pop("logger")) == ("info", ACCESS_LOGGER)
    words = dict(word.split("=", 1) for word in line.split(" "))
    assert list(fields) == list(words)
    for name, value in fields.items():
        assert value == (float(words[name]) if isinstance(value, float | int) else words[name])


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_text_that_looks_like_a_placeholder_is_written_unchanged(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = exchange(1)
    facts.error_reason = "{0}{x}"
    set_up_logging(log_format)
    write(AccessLog(log_format), facts)
    flush()
    assert "{0}{x}" in capsys.readouterr().err


async def test_lines_for_another_handler_are_complete(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        for log_format in ("text", "json"):
            write(AccessLog(log_format), exchange(1))
    text, in_json = [record.getMessage() for record in caplog.records]
    assert text.startswith("request=r1 ")
    fields = json.loads(in_json)
    assert (fields["request"], fields["level"], fields["logger"]) == ("r1", "info", ACCESS_LOGGER)
    assert re.fullmatch(TIME, fields["time"])


async def test_a_log_without_a_handler_fails_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    set_up_logging("text")
    (handler,) = logging.getLogger("roundhouse").handlers
    assert isinstance(handler, logging.StreamHandler)

    def broken(_: str) -> int:
        raise BrokenPipeError

    with monkeypatch.context() as patched:
        patched.setattr(handler.stream, "write", broken)
        write(AccessLog("text"), exchange(1))
        handler.flush()


async def test_the_type_of_an_engine_s_error_cannot_look_like_other_facts(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logging("text")
    refused = exchange(1)
    refused.status, refused.outcome, refused.error_reason = 400, "refused", "bad request=r2 %s"
    write(AccessLog("text"), refused)
    flush()
    assert capsys.readouterr().err.endswith(' cache=NONE error="bad request=r2 %s"\n')
