"""Three models, each with one engine, on a GPU that has room for one of them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.api.access.auth import hash_key
from tests.world.processes import WorldEngine, WorldRouter
from tests.world.scenario import World

ADMIN: Final = {"authorization": "Bearer admin-key"}
_AUTH: Final = f'[auth]\nmode = "open"\nadmin_keys = ["{hash_key(b"admin-key")}"]\n'

MODELS: Final = ("chat", "code", "mistral")

SLEEP: Final = 0.5
"""Seconds in which an engine falls asleep once no request runs."""

WAKE: Final = 1.0
"""Seconds in which it wakes up."""


def config(
    url: str, engines: Sequence[WorldEngine], gpu: str = "", *, engine: str = 'sleep = "vllm"', models: str = "",
    rest: str = "", names: Sequence[str] = MODELS, needs: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """`gpu`, `engine` and `models`: lines for the group, each engine and each model; `URL` is that of the engine.

    `names`: of the group. `needs`: what each one needs of the memory.
    """
    tables = [f'[router]\nstate = "/nowhere"\n[cache]\nurl = "{url}"', _AUTH, rest]
    tables += [f'[[model]]\nname = "{name}"\n{models}' for name in MODELS]
    tables += [
        f'[[engine]]\nname = "{name}"\nmodel = "{name}"\nurl = "{each.url}"\n'
        + (engine.replace("URL", each.url) if name in names else "")
        + (f'\ngpu_memory = "{needs[name]}"' if needs else "")
        for name, each in zip(MODELS, engines, strict=True)
    ]
    members = ", ".join(f'"{name}"' for name in names)
    return "\n".join([*tables, f'[[gpu]]\nname = "gpu0"\nengines = [{members}]\n{gpu}\n'])


class Setting:
    def __init__(self, world: World, engines: list[WorldEngine], routers: list[WorldRouter]) -> None:
        self.world = world
        self.engines = dict(zip(MODELS, engines, strict=True))
        self.routers = routers

    async def awake(self) -> list[str]:
        return [name for name, engine in self.engines.items() if not await sleeps(engine)]

    def config(self, gpu: str = "", **options: Any) -> str:
        return config(self.world.redis.url, list(self.engines.values()), gpu, **options)


async def sleeps(engine: WorldEngine) -> bool:
    answer = (await engine._client.get(f"{engine.url}/is_sleeping")).json()
    return bool(answer["is_sleeping"])


async def put_to_sleep(engine: WorldEngine, level: int = 1) -> None:
    assert (await engine._client.post(f"{engine.url}/sleep?level={level}&mode=wait")).status_code == 200


async def start(
    world: World, routers: int = 1, *, gpu: str = "", asleep: Sequence[str] = MODELS[1:],
    options: dict[str, Any] | None = None, **engine: Any,
) -> Setting:  # fmt: skip
    """`asleep`: engines that sleep before the routers start. `options`: of `config`. `engine`: of the simulator."""
    engines = [
        await world.engine(name, **{"server_dev_mode": True, "sleep_seconds": SLEEP, "wake_seconds": WAKE, **engine})
        for name in MODELS
    ]
    for name, each in zip(MODELS, engines, strict=True):
        if name in asleep:
            await put_to_sleep(each)
    text = config(world.redis.url, engines, gpu, **(options or {}))
    return Setting(world, engines, [await world.router(text) for _ in range(routers)])
