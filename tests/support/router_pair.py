"""Two routers with one engine, at the default timeouts: a leader and a follower."""

import re
from typing import Final

from router.api.access.auth import hash_key
from tests.support.router_server import RouterClient, router_config
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sse_answers import DONE_FRAME, ROLE_FRAME, chat_frame
from tests.support.tcp_proxy import TcpProxy

ADMIN_KEY: Final = "sk-admin"
ANSWER: Final = (
    ROLE_FRAME + chat_frame(content="one "),
    chat_frame(content="two"),
    chat_frame(content="", finish="stop") + DONE_FRAME,
)


class RouterPair:
    """A leader whose Redis connections go through a proxy, a follower, and their engine."""

    def __init__(self, leader: RouterClient, follower: RouterClient, engine: ScriptedEngine, proxy: TcpProxy) -> None:
        self.leader = leader
        self.follower = follower
        self.engine = engine
        self.proxy = proxy

    @property
    def generations(self) -> int:
        return len(self.engine.bodies)

    def release_chunks(self, times: int = 1) -> None:
        for _ in range(times):
            self.engine.chunk_permits.release()

    async def purge_everything(self) -> None:
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        answer = await self.follower.http.post("/admin/cache/purge", json={"all": True}, headers=headers)
        assert answer.status_code == 200


def pair_config(url: str, engine: ScriptedEngine, cache: str = "") -> str:
    """A configuration with the default timeouts for Redis."""
    rest = f'[auth]\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]'
    config = router_config(url, {"scripted": ("llama", "any", engine.url)}, cache=cache, rest=rest)
    return re.sub(r'(timeout|retry) = "\d+ms"\n', "", config)
