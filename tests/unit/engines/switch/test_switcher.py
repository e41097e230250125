"""When a switch is refused, before anything is started."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from engines.plan import UpPlan
from engines.spec import EngineSpec, LaunchSpec
from engines.switch.request import RollbackRequest, SwitchRefusedError, SwitchRequest
from engines.switch.switcher import FindLackOfRoom, Switcher
from tests.support.ports import free_port

NO_ROOM = "GPU 0 has 1.0 GiB free, and 20.0 GiB are needed"


def spec(name: str, *, model: str = "llama", fallback: str | None = None) -> EngineSpec:
    return EngineSpec(
        name=name, model=model, task="any", url=f"http://127.0.0.1:{free_port()}", served_model="served",
        fallback=fallback, launch=LaunchSpec(target="old", draft="draft"),
    )  # fmt: skip


async def no_room(_: object) -> str | None:
    return NO_ROOM


def switcher(folder: Path, specs: list[EngineSpec], find_lack_of_room: FindLackOfRoom = no_room) -> Switcher:
    """One whose engines run, as far as it knows, and whose Redis is down."""
    plan = UpPlan(
        state=str(folder), control_socket="", redis_socket=str(folder / "redis.sock"), redis_url=None, router=None,
        kind="simulator", vllm_python=None, engines=specs, example_model="llama",
    )  # fmt: skip
    engines = {one.name: SimpleNamespace(spec=one, name=one.name) for one in specs}
    fleet: Any = SimpleNamespace(plan=plan, engines=engines, used_ports={one.port for one in specs})
    client: Any = httpx.AsyncClient
    return Switcher(fleet, {}, client, find_lack_of_room, lambda _: None)


async def test_without_room_and_without_another_engine_a_switch_is_refused(tmp_path: Path) -> None:
    request = SwitchRequest(engine="e0", target="new")
    with pytest.raises(SwitchRefusedError, match=f"{NO_ROOM}, and nothing else answers for model llama; with --after"):
        await switcher(tmp_path, [spec("e0"), spec("e1")]).switch(request, lambda _: None)


class PastTheChecksError(Exception):
    """Raised by what comes after the checks."""


@pytest.mark.parametrize(
    ("request_", "specs"),
    [
        (SwitchRequest(engine="e0", target="new"), [spec("e0", fallback="mistral")]),
        (SwitchRequest(engine="e0", draft="new"), [spec("e0"), spec("e1")]),
        (SwitchRequest(engine="e0", target="new", after=True), [spec("e0")]),
    ],
)
async def test_without_room_the_old_engine_is_stopped_first_if_something_else_answers_or_it_is_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: SwitchRequest, specs: list[EngineSpec]
) -> None:
    def replacement(*_: object, after: bool, **__: object) -> None:
        assert after
        raise PastTheChecksError

    monkeypatch.setattr("engines.switch.switcher.Replacement", replacement)
    with pytest.raises(PastTheChecksError):
        await switcher(tmp_path, specs).switch(request_, lambda _: None)


async def test_only_one_switch_is_done_at_a_time(tmp_path: Path) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> str | None:
        asked.set()
        await answer.wait()
        return NO_ROOM

    busy = switcher(tmp_path, [spec("e0")], slow)
    first = asyncio.ensure_future(busy.switch(SwitchRequest(engine="e0", target="new"), lambda _: None))
    await asked.wait()
    with pytest.raises(SwitchRefusedError, match="another switch is under way"):
        await busy.rollback(RollbackRequest(engine="e0"), lambda _: None)
    answer.set()
    with pytest.raises(SwitchRefusedError, match=NO_ROOM):
        await first
    with pytest.raises(SwitchRefusedError, match="e0 has no previous version"):
        await busy.rollback(RollbackRequest(engine="e0"), lambda _: None)
