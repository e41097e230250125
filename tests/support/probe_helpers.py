"""Waits until a router's probe has seen what engines report."""

from typing import Any

from tests.support.router_server import RouterServer
from tests.support.waiting import eventually


async def wait_for_kv_usage(router: RouterServer, usage: float, *engines: str) -> None:
    """Returns once a complete round of the router's probe has read this KV cache usage from these engines."""
    rounds: list[str] = []

    async def is_known() -> bool:
        page: Any = (await router.http.get("/healthz")).json()
        if all(page["engines"][name]["kv_cache_usage"] == usage for name in engines):
            rounds.append(page["last_check"])
        # The usages may come from a round that is still running; a second round proves that all engines were probed.
        return len(set(rounds)) > 1

    await eventually(is_known)
