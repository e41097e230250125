"""Keys are created, read and revoked in every Redis deployment, with the rights that the router needs."""

import secrets
import time

import pytest

from router.core.api_keys import KeyRecord, hash_key
from router.core.cache.redis_keys import KEYS_RECORDS_KEY
from router.net.redis.connect import open_client
from router.shared.connection.redis import open_backend, open_pipeline
from router.shared.credentials.stored_keys import StoredKeys
from router.store.admin.keys import create_key, list_keys, revoke_key
from tests.support.configurations import MINIMAL, parse_config
from tests.support.redis_deployments import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_key_is_created_used_and_revoked(deployment: Deployment) -> None:
    settings = parse_config(f'[auth]\nmode = "keys"\n[[tenant]]\nname = "acme"\n{MINIMAL}')
    client = open_client(deployment.url, timeout=5)
    pipeline = open_pipeline(open_backend(deployment.url, timeout=2), timeout=2, retry=0.05)
    await pipeline.start()
    now = time.time()
    known: dict[str, KeyRecord] = {}

    def on_change(records: object) -> None:
        known.clear()
        known.update({record.hash: record for record in records})  # type: ignore[attr-defined]  # a collection of them

    keys = StoredKeys(pipeline, on_change, clock=lambda: now, publishes=False)
    try:
        name = "k" + secrets.token_hex(4)
        made = await create_key(client, settings, tenant="acme", name=name, expires_in=3600)
        await keys.refresh()
        assert known[hash_key(made.key.encode())].revoked is None
        keys.record_use(made.key_id)
        keys.flush_used()
        await keys.refresh()  # its command comes after that
        (row,) = [row for row in await list_keys(client, settings) if row.key_id == made.key_id]
        assert (row.status, row.last_used) == ("active", int(now))
        await revoke_key(client, settings, name)
        await keys.refresh()
        assert known[hash_key(made.key.encode())].revoked is not None
        assert pipeline.up
    finally:
        # While Redis has keys, routers of later tests, whose configuration says nothing of keys, refuse all requests.
        await client.delete(KEYS_RECORDS_KEY)
        await pipeline.aclose()
        await client.aclose()
