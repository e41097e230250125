"""Two routers before one engine, at the default timeouts: one that leads, and one that follows."""

import re
from typing import Final

from router.api.auth import hash_key
from tests.support.fault_proxy import RedisProxy
from tests.support.router_server import RouterServer, configuration
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE, ROLE, chunk

ADMIN_KEY: Final = "sk-admin"
ANSWER: Final = (ROLE + chunk(content="one "), chunk(content="two"), chunk(content="", finish="stop") + DONE)


class Pair:
    """A router that leads, whose connections go through a proxy, one that follows, and their engine."""

    def __init__(self, leader: RouterServer, follower: RouterServer, engine: ScriptedEngine, proxy: RedisProxy) -> None:
        self.leader = leader
        self.follower = follower
        self.engine = engine
        self.proxy = proxy

    @property
    def generations(self) -> int:
        return len(self.engine.bodies)

    def go(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.go.release()

    async def purge_everything(self) -> None:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        answer = await self.follower.http.post("/admin/cache/purge", json={"all": True}, headers=headers)
        assert answer.status_code == 200


def text(url: str, engine: ScriptedEngine, cache: str = "") -> str:
    """A configuration in which Redis has the time that it has by default."""
    rest = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]'
    made = configuration(url, {"scripted": ("llama", "any", engine.url)}, cache=cache, rest=rest)
    return re.sub(r'(timeout|retry) = "\d+ms"\n', "", made)
