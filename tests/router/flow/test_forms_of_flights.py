"""A flight that another process leads, joined by clients that want its answer in another form."""

import asyncio

import pytest
from serving import Engines, MakeRouter
from sse_answers import DONE, said

pytestmark = pytest.mark.asyncio(loop_scope="session")
pytest_plugins = ["router_fixtures"]


@pytest.mark.parametrize("leads", [False, True], ids=["JSON leads", "a stream leads"])
@pytest.mark.parametrize("joins", [False, True], ids=["JSON joins", "a stream joins"])
async def test_an_answer_under_way_elsewhere_comes_in_the_form_that_was_asked_for(
    config: str, make_router: MakeRouter, engines: Engines, *, leads: bool, joins: bool
) -> None:
    one, other = await make_router(config), await make_router(config)
    await engines.chat.faults({"fault": "tps", "rate": 60, "times": 1})
    before = (await engines.chat.stats())["started"]
    first = asyncio.create_task(one.chat("The sea?", stream=leads))
    await engines.chat.stats(started=before + 1)
    second = await other.chat("The sea?", stream=joins)
    answer = await first
    assert [answer.headers["x-cache"], second.headers["x-cache"]] == ["MISS", "COALESCED"]
    assert said(second) == said(answer) != ""
    assert second.content.endswith(DONE) is joins
    assert (await engines.chat.stats())["started"] == before + 1
