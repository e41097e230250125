"""Three models on one GPU: their engines take turns."""

import asyncio
import json

from router.core.cache.redis_keys import gpu_group_key
from tests.support.waiting import eventually
from tests.world.gpu_group import ADMIN, MODELS, SLEEP, WAKE, put_to_sleep, start
from tests.world.processes import WorldRouter
from tests.world.scenario import World, scenario


@scenario
async def test_a_request_for_a_model_that_sleeps_wakes_its_engine_up_and_the_other_one_sleeps(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    assert await setting.awake() == ["chat"]
    loop = asyncio.get_running_loop()
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    began = loop.time()
    answer = await router.chat("A function?", model="code")
    assert (answer.status_code, answer.headers["x-cache"]) == (200, "MISS")
    assert loop.time() - began < SLEEP + WAKE + 1
    assert await setting.awake() == ["code"]
    hit = await router.chat("The sea?", model="chat")
    assert hit.headers["x-cache"] == "HIT"
    assert await setting.awake() == ["code"], "a hit wakes nobody"


@scenario
async def test_a_stream_runs_to_its_end_before_its_engine_sleeps(world: World) -> None:
    setting = await start(world, tokens_per_second=10)
    (router,) = setting.routers
    stream = asyncio.ensure_future(router.chat("The sea?", model="chat", stream=True, max_tokens=100, ignore_eos=True))
    await asyncio.sleep(1)
    other = await router.chat("A function?", model="code", max_tokens=1)
    assert other.status_code == 200
    assert stream.done()
    assert (await stream).status_code == 200


@scenario
async def test_two_routers_agree_and_no_request_is_lost(world: World) -> None:
    setting = await start(world, routers=2, tokens_per_second=50)

    async def ask(number: int) -> int:
        await asyncio.sleep(number * 0.7)
        router = setting.routers[number % 2]
        answer = await router.chat(f"Question {number}?", model=MODELS[number % 3], max_tokens=20, ignore_eos=True)
        return answer.status_code

    assert set(await asyncio.gather(*(ask(number) for number in range(60)))) == {200}
    assert len(await setting.awake()) == 1


@scenario
async def test_a_router_that_is_killed_in_any_phase_of_a_switch_leaves_nothing_in_between(world: World) -> None:
    setting = await start(world, routers=2, tokens_per_second=20)
    one, two = setting.routers
    for number, delay in enumerate((0.1, 0.4, 0.7, 1.0, 1.3, 1.6, 2.0)):
        model = MODELS[1 + number % 2]
        asking = asyncio.ensure_future(two.chat(f"Question {number}?", model=model, max_tokens=5, ignore_eos=True))
        await asyncio.sleep(delay)
        one.kill()
        assert (await asyncio.wait_for(asking, 60)).status_code == 200
        assert len(await setting.awake()) == 1
        await one.start()


@scenario
async def test_an_engine_that_does_not_wake_up_gives_the_gpu_back(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    setting.engines["code"].kill()
    asking = asyncio.ensure_future(router.chat("A function?", model="code"))
    await asyncio.sleep(8)
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    await setting.engines["code"].start()
    assert (await asyncio.wait_for(asking, 120)).status_code == 200


@scenario
async def test_while_redis_is_down_nobody_changes_places(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    world.redis.stop(loses_data=False)
    asking = asyncio.ensure_future(router.chat("A function?", model="code"))
    await asyncio.sleep(10)
    assert not asking.done()
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    world.redis.start()
    assert (await asyncio.wait_for(asking, 60)).status_code == 200


@scenario
async def test_a_reload_in_the_middle_of_a_switch_loses_no_request(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    text = setting.config('max_wait = "1m"')
    for number, delay in enumerate((0.2, 0.6, 1.2, 1.8)):
        asking = asyncio.ensure_future(router.chat(f"Question {number}?", model=MODELS[1 + number % 2]))
        await asyncio.sleep(delay)
        await router.reload(text.replace("1m", f"{60 + number}s"))
        assert (await asyncio.wait_for(asking, 60)).status_code == 200


@scenario
async def test_an_engine_that_leaves_the_group_is_awake_for_itself(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    assert (await router.chat("A function?", model="code")).status_code == 200
    await router.reload(setting.config(names=("chat", "mistral")))
    assert (await router.chat("Another function?", model="code")).status_code == 200
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    assert await setting.awake() == ["chat", "code"]
    mistral = setting.engines["mistral"]
    await router.reload(setting.config(names=("chat", "code")))
    await mistral._client.post(f"{mistral.url}/wake_up")
    assert (await router.chat("A poem?", model="mistral")).status_code == 200, "it slept when it left"


@scenario
async def test_an_engine_that_somebody_else_wakes_up_is_put_to_sleep_again(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    code = setting.engines["code"]
    await code._client.post(f"{code.url}/wake_up")
    await asyncio.sleep(20)
    assert await setting.awake() == ["chat"]
    assert (await router.chat("The sea?", model="chat")).status_code == 200


@scenario
async def test_an_engine_that_somebody_else_puts_to_sleep_is_woken_up_by_the_next_request(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    await put_to_sleep(setting.engines["chat"])
    await asyncio.sleep(20)
    assert await setting.awake() == []
    assert (await router.chat("The sea?", model="chat")).status_code == 200


@scenario
async def test_of_engines_that_are_awake_together_as_many_as_there_is_room_for_stay_so(world: World) -> None:
    setting = await start(world, asleep=(), gpu="awake = 2")
    await asyncio.sleep(20)
    assert await setting.awake() == ["chat", "code"]


@scenario
async def test_a_request_for_a_big_engine_puts_two_small_ones_to_sleep(world: World) -> None:
    needs = dict(zip(MODELS, ("8GiB", "8GiB", "20GiB"), strict=True))
    setting = await start(world, asleep=("mistral",), gpu='memory = "22GiB"', options={"needs": needs})
    (router,) = setting.routers
    for model, awake in (("code", ["chat", "code"]), ("mistral", ["mistral"]), ("chat", ["chat"])):
        assert (await router.chat(f"About {model}?", model=model)).status_code == 200
        assert await setting.awake() == awake
    assert (await router.chat("About code again?", model="code")).status_code == 200
    assert await setting.awake() == ["chat", "code"], "there is room for both"


@scenario
async def test_weights_that_were_dropped_are_loaded_again(world: World) -> None:
    setting = await start(world, options={"engine": 'sleep = "vllm"\nsleep_level = 2'})
    (router,) = setting.routers
    assert (await router.chat("A function?", model="code")).status_code == 200
    assert (await router.chat("The sea?", model="chat")).status_code == 200
    assert await setting.awake() == ["chat"]


@scenario
async def test_an_operator_puts_an_engine_to_sleep_and_the_next_request_wakes_it_up(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    ordered = await router.http.post("/admin/engines/chat/sleep", headers=ADMIN)
    assert (ordered.status_code, ordered.json()["gpu"]) == (200, "gpu0")
    await asyncio.sleep(2)
    assert await setting.awake() == []
    assert (await router.chat("The sea?", model="chat")).status_code == 200


@scenario
async def test_an_operator_wakes_an_engine_up_while_another_has_requests_and_it_keeps_its_turn(world: World) -> None:
    setting = await start(world, tokens_per_second=10, gpu='min_awake = "10s"')
    (router,) = setting.routers
    stream = asyncio.ensure_future(router.chat("The sea?", model="chat", stream=True, max_tokens=50, ignore_eos=True))
    await asyncio.sleep(1)
    assert (await router.http.post("/admin/engines/code/wake", headers=ADMIN)).status_code == 200
    await asyncio.sleep(1)
    assert await setting.awake() == ["chat"], "its stream runs"
    assert (await stream).status_code == 200
    await asyncio.sleep(3)
    assert await setting.awake() == ["code"]
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await router.chat("The hills?", model="chat", max_tokens=1)).status_code == 200
    assert 5 < loop.time() - began < 12, "min_awake"


@scenario
async def test_an_order_for_an_engine_without_a_gpu_is_refused(world: World) -> None:
    setting = await start(world, options={"names": ("chat", "mistral")}, asleep=("mistral",))
    refused = await setting.routers[0].http.post("/admin/engines/code/wake", headers=ADMIN)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "engine_without_gpu")


@scenario
async def test_urls_of_another_server_put_engines_to_sleep_and_wake_them_up(world: World) -> None:
    calls = 'sleep_call = "URL/sleep?level=1&mode=wait"\nwake_call = "URL/wake_up"'
    setting = await start(world, options={"engine": calls})
    (router,) = setting.routers
    for model in ("code", "mistral", "chat"):
        assert (await router.chat(f"About {model}?", model=model)).status_code == 200
        assert await setting.awake() == [model]


@scenario
async def test_the_status_says_who_is_awake_since_when_and_how_often_that_changed(world: World) -> None:
    setting = await start(world)
    (router,) = setting.routers
    assert (await router.chat("A function?", model="code")).status_code == 200
    (gpu,) = (await router.http.get("/admin/status", headers=ADMIN)).json()["gpus"]
    assert (gpu["name"], gpu["switches"], gpu["failed"]) == ("gpu0", 1, 0)
    assert [(each["engine"], each["state"]) for each in gpu["engines"]] == [
        ("chat", "asleep"), ("code", "awake"), ("mistral", "asleep"),
    ]  # fmt: skip
    assert SLEEP + WAKE <= gpu["engines"][1]["wake_seconds"] < SLEEP + WAKE + 1
    metrics = (await router.http.get("/metrics")).text
    assert 'llm_gpu_switches_total{engine="code",gpu="gpu0",result="woken"} 1.0' in metrics
    assert 'roundhouse_engine_asleep{engine="chat"} 1.0' in metrics


async def phase(world: World) -> str:
    state = await world.redis.client.hget(gpu_group_key("gpu0"), "state")
    return str(json.loads(state).get("phase", "steady"))


@scenario
async def test_a_router_that_stood_still_while_another_one_decided_makes_no_call_any_more(world: World) -> None:
    setting = await start(world, routers=2, options={"engine": 'sleep = "vllm"\nsleep_level = 2'})
    first, second = setting.routers
    asking = asyncio.ensure_future(second.chat("A function?", model="code"))

    async def wakes() -> bool:
        return await phase(world) == "waking"

    await eventually(wakes)
    first.freeze()  # in the first of the three calls that wake an engine up
    assert (await asking).status_code == 200
    assert (await second.chat("The sea?", model="chat")).status_code == 200
    first.thaw()
    for _ in range(50):
        await asyncio.sleep(0.1)
        assert await setting.awake() == ["chat"]


@scenario
async def test_a_router_that_does_not_know_of_a_switch_yet_loses_no_request_in_it(world: World) -> None:
    setting = await start(world, sleep_seconds=0.0)
    (first,) = setting.routers
    await asyncio.sleep(0.13)  # so that it reads a state half an interval after the first one
    second = await world.router(setting.config())

    async def ask(delay: float, router: WorldRouter, prompt: str, model: str) -> float:
        await asyncio.sleep(delay)
        began = asyncio.get_running_loop().time()
        assert (await router.chat(prompt, model=model, max_tokens=1)).status_code == 200
        return asyncio.get_running_loop().time() - began

    for number in range(60):
        await ask(0, first, f"Sea {number}?", "chat")
        seconds = await asyncio.gather(
            ask(0, first, f"Function {number}?", "code"), ask(0.01 * number, second, f"Hill {number}?", "chat")
        )
        assert max(seconds) < 2 * (SLEEP + WAKE) + 2


@scenario
async def test_a_router_that_stood_still_gets_an_answer_from_an_engine_that_has_fallen_asleep(world: World) -> None:
    setting = await start(world, routers=2)
    first, second = setting.routers
    assert (await second.chat("The sea?", model="chat")).status_code == 200
    first.freeze()
    await asyncio.sleep(12)  # it is no longer waited for
    assert (await second.chat("A function?", model="code")).status_code == 200
    asking = asyncio.ensure_future(first.chat("The hills?", model="chat"))
    await asyncio.sleep(1)
    first.thaw()
    assert (await asking).status_code == 200


@scenario
async def test_a_router_that_alone_has_no_redis_sends_nothing_to_an_engine_that_sleeps(world: World) -> None:
    setting = await start(world)
    (first,) = setting.routers
    proxy = await world.proxy()
    cut_off = await world.router(setting.config().replace(world.redis.url, proxy.url))
    assert (await first.chat("The sea?", model="chat")).status_code == 200
    proxy.refuse("listening", "commands")
    await asyncio.sleep(12)
    assert (await first.chat("A function?", model="code")).status_code == 200
    await asyncio.sleep(5)
    asking = asyncio.ensure_future(cut_off.chat("The hills?", model="chat"))
    await asyncio.sleep(5)
    assert not asking.done()
    proxy.release()
    assert (await asking).status_code == 200


@scenario
async def test_after_a_reload_with_less_room_those_that_were_used_last_stay_awake(world: World) -> None:
    setting = await start(world, asleep=("mistral",), gpu="awake = 2")
    (router,) = setting.routers
    for model in ("chat", "code"):
        assert (await router.chat(f"About {model}?", model=model)).status_code == 200
    await router.reload(setting.config("awake = 1"))
    await asyncio.sleep(3)
    assert await setting.awake() == ["code"]


@scenario
async def test_an_engine_of_calls_that_has_died_is_woken_up_by_the_next_request(world: World) -> None:
    calls = 'sleep_call = "URL/sleep?level=1&mode=wait"\nwake_call = "URL/wake_up"'
    setting = await start(world, options={"engine": calls}, asleep=())
    (router,) = setting.routers
    await asyncio.sleep(3)
    assert await setting.awake() == ["chat"], "those that there is no room for are put to sleep at the start"
    chat = setting.engines["chat"]
    chat.kill()
    await asyncio.sleep(20)
    await chat.start()
    await put_to_sleep(chat)
    assert (await router.chat("The sea?", model="chat")).status_code == 200
