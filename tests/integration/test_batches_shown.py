"""What administrators and Prometheus see of batches that run, at routers on sockets."""

from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from router.api.access.auth import hash_key
from router.core.batches.batch_overview import OPEN_STATES
from tests.support.batch_lines import HELD, begin_batch, held_lines
from tests.support.redis_process import RedisServer
from tests.support.router_server import EngineSet, MakeRouter, RouterServer, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = {"authorization": "Bearer admin-key"}
AUTH = f"""
[auth]
mode = "header"
admin_keys = ["{hash_key(b"admin-key")}"]
[[tenant]]
name = "acme"
[[tenant]]
name = "beta"
"""


@pytest.fixture
def text(redis_server: RedisServer, engines: EngineSet, tmp_path: Path) -> str:
    return router_config(
        redis_server.url, engines.as_config(), rest=f'{AUTH}\n[batch]\nfolder = "{tmp_path}"\nmax_in_flight = 4\n'
    )


@pytest_asyncio.fixture(loop_scope="session")
async def router(make_router: MakeRouter, text: str) -> RouterServer:
    return await make_router(text)


async def shown(router: RouterServer) -> Any:
    return (await router.http.get("/admin/batches", headers=ADMIN)).raise_for_status().json()


async def test_a_batch_in_progress_is_shown_with_its_counts_rate_and_time_left_at_every_router(
    router: RouterServer, make_router: MakeRouter, text: str, engines: EngineSet
) -> None:
    for engine in (engines.chat, engines.code):
        await engine.set_faults(HELD)
    other = await make_router(text)
    id_ = await begin_batch(router, held_lines(), "acme")
    document: Any = None

    async def first_half_is_done() -> bool:
        nonlocal document
        document = await shown(router)
        (batch,) = document["open"]
        return bool(batch["completed"] == 50)

    await eventually(first_half_is_done)
    (batch,) = document["open"]
    assert (document["enabled"], document["open_batches"], document["ended"]) == (True, 1, [])
    assert (batch["id"], batch["tenant"], batch["endpoint"]) == (id_, "acme", "/v1/chat/completions")
    assert (batch["status"], batch["total"], batch["failed"], batch["cached"]) == ("in_progress", 100, 0, 24)
    assert batch["lines_per_second"] > 0
    assert batch["seconds_left"] == pytest.approx(50 / batch["lines_per_second"], rel=0.01)
    assert batch["expires_at"] - batch["created_at"] == 86_400
    assert batch.keys().isdisjoint({"input_file_id", "metadata", "output_file_id"})
    (elsewhere,) = (await shown(other))["open"]
    assert (elsewhere["id"], elsewhere["completed"]) == (id_, 50)

    async def metrics_have_it() -> bool:
        pages = [await each.metrics() for each in (router, other)]
        found = {
            result: sum(page[f'roundhouse_batch_lines_total{{result="{result}"}}'] for page in pages)
            for result in ("generated", "cached", "failed")
        }
        in_flight = sum(page["roundhouse_batch_lines_in_flight"] for page in pages)
        return found == {"generated": 26, "cached": 24, "failed": 0} and in_flight == 4

    await eventually(metrics_have_it)
    headers = {"x-tenant-id": "acme"}
    await router.http.post(f"/v1/batches/{id_}/pause", headers=headers)

    async def is_paused() -> bool:
        nonlocal batch
        (batch,) = (await shown(router))["open"]
        return bool(batch["paused"])

    await eventually(is_paused)
    assert (batch["lines_per_second"], batch["seconds_left"]) == (None, None)
    await router.http.post(f"/v1/batches/{id_}/cancel", headers=headers)

    async def has_ended() -> bool:
        nonlocal document
        document = await shown(router)
        return not document["open"]

    await eventually(has_ended)
    (batch,) = document["ended"]
    assert (batch["id"], batch["status"], batch["completed"], batch["cached"]) == (id_, "cancelled", 50, 24)
    assert batch["ended_at"] >= batch["created_at"]


async def test_open_batches_are_counted_by_what_happens_to_them(
    router: RouterServer, make_router: MakeRouter, text: str
) -> None:
    id_ = await begin_batch(router, held_lines(), "beta")
    await router.http.post(f"/v1/batches/{id_}/pause", headers={"x-tenant-id": "beta"})
    later = await make_router(text)  # it counts at once

    async def counted() -> bool:
        page = await later.metrics()
        found = {name: value for name, value in page.items() if name.startswith("roundhouse_batches_open{")}
        return (
            len(found) == len(OPEN_STATES)
            and found['roundhouse_batches_open{state="paused"}'] == sum(found.values()) == 1
        )

    await eventually(counted)


async def test_a_router_without_batches_says_so_and_has_no_samples_of_them(
    make_router: MakeRouter, redis_server: RedisServer, engines: EngineSet
) -> None:
    router = await make_router(router_config(redis_server.url, engines.as_config(), rest=AUTH))
    assert await shown(router) == {"enabled": False, "now": None, "open_batches": 0, "open": [], "ended": []}
    assert (await router.http.get("/admin/batches")).status_code == 401
    samples = [name for name in await router.metrics() if name.startswith("roundhouse_batch")]
    assert samples == ["roundhouse_batch_lines_in_flight"]
