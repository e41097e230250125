"""The view of `roundhouse top` as text: the same documents give the same lines, in any terminal."""

import io
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from router.commands.top.client import Snapshot
from router.commands.top.view import View, render
from router.shared.status.status_documents import HistoryDocument, Problem, RedisRow, RequestsDocument
from tests.support.status_factory import engine_row, request_row, router_row, snapshot, status_document

URL = "http://127.0.0.1:8080"


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def lines(shown: Snapshot | None, width: int = 80, height: int | None = 24, **fields: Any) -> list[str]:
    console = Console(width=width, height=height or 100, file=io.StringIO(), force_terminal=False)
    view: dict[str, Any] = {
        "url": URL, "snapshot": shown, "problem": None, "now": 10.0, "read_at": 10.0, "interval": 2.0,
        "interactive": True,
    }  # fmt: skip
    with console.capture() as captured:
        console.print(render(View(width=width, height=height, **view | fields)))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_a_terminal_of_80_by_24_shows_everything() -> None:
    assert lines(snapshot(requests=30))[:16] == [
        "16:00:00  http://127.0.0.1:8080  2 routers 0.1.0 compiled",
        "Redis 7.2.4: 12.0 MiB, 1,234 keys",
        "        req/s  hits  TTFT p50/p99                   tok saved  GPU saved  errors",
        "minute   9.67   60%  hit 1.2/4.5ms, miss 310/905ms      34.8k       174s       0",
        "hour     4.92   60%  40ms/12.5s                          1.1M     5,310s       2",
        "requests     ▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇█████ 580  hits         ▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇█████ 348",
        "tokens saved ▆▆▆▆▆▆▇▇▇▇▇▇▇▇█████ 34.8k  GPU-s saved  ▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇█████ 174",
        "engine      model  state  load  run  wait   KV  accept  tok/step  breaker",
        "llama-code  llama  down   3/64    ?     ?    ?     71%      2.40  open",
        "llama-chat  llama  up     3/64    3     0  42%     71%      2.40  closed",
        "router   pid  in flight  queued  state     seen    version",
        "gpu-1   4711          3       0  serves    0s ago  0.1.0",
        "gpu-2     12          3       0  draining  0s ago  0.1.0",
        "ended      cache  reason  status  tenant  model  engine         ms  ttft  tokens",
        "15:59:59   MISS   new        200  acme    llama  llama-chat  379ms  41ms      53",
        "15:59:58   MISS   new        200  acme    llama  llama-chat  379ms  41ms      53",
    ]
    assert lines(snapshot(requests=30))[22:] == ["… 22 more", "q quits, r reads now; every 2 s"]


def test_problems_stand_below_the_header_and_leave_room_for_the_rest() -> None:
    problems = tuple(
        Problem(severity="critical", kind="engine", subject=f"e{number}", words=f"engine e{number} is down")
        for number in range(9)
    )
    shown = lines(snapshot(requests=30, problems=problems))
    assert len(shown) == 24
    assert shown[2:7] == [*(f"engine e{number} is down" for number in range(4)), "… 5 more problems"]
    assert shown[7].startswith("        req/s")
    assert [line for line in lines(snapshot(problems=problems), height=None) if " is down" in line][8:] == [
        "engine e8 is down"
    ]


def test_an_engine_that_sleeps_is_not_among_those_that_fail() -> None:
    engines = (engine_row("a", state="down", asleep=True), engine_row("b", breaker="open"), engine_row("c", state="up"))
    shown = lines(snapshot(engines=engines))
    assert [line.split()[:3] for line in shown if line[:3] in ("a  ", "b  ", "c  ")] == [
        ["b", "llama", "up"], ["a", "llama", "asleep"], ["c", "llama", "up"],
    ]  # fmt: skip


def test_the_header_is_one_line_where_it_fits() -> None:
    header = "16:00:00  http://127.0.0.1:8080  2 routers 0.1.0 compiled  Redis 7.2.4: 12.0 MiB, 1,234 keys"
    assert lines(snapshot(), width=len(header))[0] == header
    assert lines(snapshot(), width=len(header) - 1)[:2] == header.rsplit("  ", 1)


def test_a_wide_terminal_shows_drafts_and_sensors_too() -> None:
    shown = lines(snapshot(), width=140)
    titles = next(line for line in shown if line.startswith("engine "))
    assert titles.split() == [
        "engine", "model", "task", "state", "load", "run", "wait", "KV", "prefix", "accept", "tok/step", "breaker",
        "draft", "°C", "W", "restarts",
    ]  # fmt: skip
    assert next(line for line in shown if line.startswith("llama-chat ")).split()[-4:] == ["llama-1b", "61", "412", "1"]


@pytest.mark.parametrize("width", [20, 40, 50, 79, 80, 81, 120, 200])
@pytest.mark.parametrize("height", [15, 24, 40])
def test_no_line_is_wider_than_the_terminal_and_no_view_is_higher(width: int, height: int) -> None:
    shown = snapshot(
        requests=100,
        engines=tuple(engine_row(f"engine-{number}-with-a-rather-long-name") for number in range(30)),
        routers=tuple(router_row(id=f"r{number}", host="host-" * 20) for number in range(30)),
    )
    text = lines(shown, width, height, problem="it does not answer")
    assert max(map(len, text)) <= width
    assert len(text) <= height
    assert height == 15 or sum(line.startswith("… ") for line in text) == 3


def test_without_a_limit_of_lines_every_row_is_shown() -> None:
    text = lines(snapshot(requests=50), width=120, height=None, interactive=False)
    assert sum("MISS" in line for line in text) == 50
    assert not any("more" in line or "quits" in line for line in text)


def test_what_is_unknown_is_a_question_mark_and_never_0() -> None:
    engine = engine_row(
        running=None, waiting=None, kv_cache_usage=None, spec_acceptance_rate=None, spec_tokens_per_step=None,
        max_in_flight=None, state="unknown",
    )  # fmt: skip
    row = next(line for line in lines(snapshot(engines=(engine,))) if line.startswith("llama-chat "))
    assert row.split() == ["llama-chat", "llama", "unknown", "3", "?", "?", "?", "?", "?", "closed"]


def test_a_router_that_does_not_answer_is_named_above_its_last_state() -> None:
    text = lines(snapshot(), problem=f"{URL} does not answer (ConnectError)", now=22.0)
    assert text[0] == f"{URL} does not answer (ConnectError); trying again; as of 12s a…"
    assert any(line.startswith("llama-chat ") for line in text)
    text = lines(None, problem=f"{URL} does not answer (ConnectError)", read_at=None)
    assert text == [f"{URL} does not answer (ConnectError); trying again", "q quits, r reads now; every 2 s"]


def test_without_redis_the_engines_are_still_shown() -> None:
    down = RedisRow(up=False, url="redis://r:6379")
    shown = Snapshot(status=status_document(redis=down, last_hour=None), history=None, requests=None)
    text = lines(shown, width=100)
    assert text[0].endswith("Redis is down (redis://r:6379)")
    assert text[1] == "The traffic is unknown while Redis is down."
    assert any(line.startswith("llama-chat ") for line in text)


def test_the_first_minute_of_a_deployment_has_no_traffic() -> None:
    shown = Snapshot(
        status=status_document(), history=HistoryDocument(minutes=()), requests=RequestsDocument(requests=())
    )
    assert any(line.startswith("hour ") for line in lines(shown))


def test_names_cannot_control_the_terminal() -> None:
    request = request_row(tenant="a\x1b[2J\nb", reason="[bold]x[/bold]")
    shown = Snapshot(
        status=status_document(engines=(engine_row("x\x1b]0;t\x07\u202e"),)),
        history=None,
        requests=RequestsDocument(requests=(request,)),
    )
    text = "\n".join(lines(shown, width=160))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"a\x1b[2J\nb" in text
    assert "[bold]x[/bold]" in text


def test_a_terminal_without_unicode_has_bars_of_ascii() -> None:
    bars = [line for line in lines(snapshot(), ascii_only=True) if line.startswith(("requests ", "tokens saved"))]
    assert len(bars) == 2
    assert all(line.isascii() for line in bars)
