"""Waiting for a router to have noticed what engines say of themselves."""

from typing import Any

from tests.support.router_server import RouterServer
from tests.support.waiting import eventually


async def wait_for_kv_usage(router: RouterServer, usage: float, *engines: str) -> None:
    """Returns once a whole round of the router's probe has found that usage of these engines' KV caches."""
    rounds: list[str] = []

    async def is_known() -> bool:
        page: Any = (await router.http.get("/healthz")).json()
        if all(page["engines"][name]["kv_cache_usage"] == usage for name in engines):
            rounds.append(page["last_check"])
        return len(set(rounds)) > 1

    await eventually(is_known)
