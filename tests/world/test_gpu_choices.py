"""Who waits for an engine of a GPU that sleeps, and who does not: `auto`, fallbacks, clients, lines of batches."""

import asyncio
from pathlib import Path

from tests.support.waiting import eventually
from tests.world.batches import batch_lines, begin_batch
from tests.world.gpu_group import ADMIN, start
from tests.world.scenario import World, scenario

AUTO = 'auto = ["chat", "code"]'


@scenario
async def test_auto_gets_a_model_that_is_awake(world: World) -> None:
    setting = await start(world, asleep=("chat", "code"), options={"models": AUTO})
    (router,) = setting.routers
    answer = await router.chat("The sea?", model="auto")
    assert answer.headers["x-engine"] == "mistral"
    assert await setting.awake() == ["mistral"]


@scenario
async def test_auto_waits_for_the_first_one_if_none_is_awake(world: World) -> None:
    setting = await start(world, asleep=("chat", "code", "mistral"), options={"models": AUTO})
    (router,) = setting.routers
    answer = await router.chat("The sea?", model="auto")
    assert answer.headers["x-engine"] == "chat"


def fallback_of_code(text: str) -> str:
    return text.replace('[[model]]\nname = "code"\n', '[[model]]\nname = "code"\nfallback = "chat"\n')


@scenario
async def test_a_request_waits_for_its_model_although_a_fallback_is_awake(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    await router.reload(fallback_of_code(setting.config()))
    answer = await router.chat("A function?", model="code")
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "code")
    assert "x-fallback" not in answer.headers


@scenario
async def test_a_fallback_that_is_awake_answers_if_the_group_says_so(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    await router.reload(fallback_of_code(setting.config("wake_before_fallback = false")))
    answer = await router.chat("A function?", model="code")
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "chat")
    assert await setting.awake() == ["chat"]


@scenario
async def test_a_fallback_answers_for_an_engine_that_is_awake_and_has_died(world: World) -> None:
    setting = await start(world, asleep=("mistral",), gpu="awake = 2")
    (router,) = setting.routers
    await router.reload(fallback_of_code(setting.config("awake = 2")))
    setting.engines["code"].kill()
    await asyncio.sleep(5)
    answer = await router.chat("A function?", model="code")
    assert (answer.status_code, answer.headers["x-engine"]) == (200, "chat")


@scenario
async def test_a_drained_engine_that_sleeps_wakes_for_nobody(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    assert (await router.http.post("/admin/engines/code/drain", headers=ADMIN)).status_code == 200
    assert (await router.chat("A function?", model="code")).status_code == 503
    assert await setting.awake() == ["chat"]


@scenario
async def test_a_client_that_does_not_wait_gets_503_and_when_to_come_again(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    answer = await router.chat("A function?", model="code", headers={"prefer": "wait=0"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_starting")
    assert int(answer.headers["retry-after"]) >= 1
    assert await setting.awake() == ["chat"], "nobody waits"


@scenario
async def test_a_client_that_leaves_wakes_nobody(world: World) -> None:
    setting = await start(world, tokens_per_second=10)
    (router,) = setting.routers
    stream = asyncio.ensure_future(router.chat("The sea?", model="chat", max_tokens=100, ignore_eos=True))
    await asyncio.sleep(1)
    asking = asyncio.ensure_future(router.chat("A function?", model="code"))
    await asyncio.sleep(1)
    asking.cancel()
    assert (await stream).status_code == 200
    await asyncio.sleep(10)
    assert await setting.awake() == ["chat"]


@scenario
async def test_lines_of_a_batch_take_no_turn_from_people_and_give_theirs_up_at_once(
    world: World, tmp_path: Path
) -> None:
    batch_table = {"rest": f'[batch]\nfolder = "{tmp_path}"\n'}
    setting = await start(world, tokens_per_second=20, gpu='min_awake = "10s"', options=batch_table)
    (router,) = setting.routers
    loop, delays = asyncio.get_running_loop(), []

    async def ask(number: int) -> None:
        began = loop.time()
        answer = await router.chat(f"How deep is sea {number}?", model="chat", max_tokens=20, ignore_eos=True)
        assert answer.status_code == 200
        delays.append(loop.time() - began)

    lines = batch_lines([f"Hill {number}?" for number in range(40)], model="mistral", max_tokens=40, ignore_eos=True)
    batch = await begin_batch(router, lines)
    for number in range(10):  # a person asks again before the engine was idle for ten seconds
        await ask(number)
        await asyncio.sleep(5)
    assert (await batch.counts())["completed"] == 0
    assert max(delays) < 1.5
    delays.clear()

    async def has_begun() -> bool:
        return await setting.awake() == ["mistral"]

    await eventually(has_begun)
    await ask(10)
    assert delays[0] < 2 + 2 + 3, "lines that run end, and others do not begin"
    assert await setting.awake() == ["chat"]
    await eventually(batch.is_complete, timeout=600)
    assert {result["response"]["status_code"] for result in await batch.results()} == {200}
