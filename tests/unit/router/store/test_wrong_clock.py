"""The admin functions use Redis' clock, whatever this machine's wall clock shows."""

import json
import time
from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.store.admin.export_import import export_entries, import_entries
from router.store.admin.listing import list_entries
from router.store.admin.stats import collect_stats
from tests.support.entry_factory import entry_key, make_entry, store_entry

pytestmark = pytest.mark.asyncio(loop_scope="session")

ALL = EntryFilter(all=True)


@pytest.fixture(params=[-3600, 3600], ids=["behind", "ahead"])
def real(request: Any, monkeypatch: pytest.MonkeyPatch) -> float:
    """The real time; this machine's wall clock is an hour off."""
    now, skew = time.time, request.param
    monkeypatch.setattr(time, "time", lambda: now() + skew)
    return now()


async def test_a_listing_shows_ages_by_redis_clock(client: Any, real: float) -> None:
    await store_entry(client, entry_key(), make_entry(created=real - 100, ttl=600.0))
    (details,) = (await list_entries(client, ALL, 10)).entries
    assert details.age is not None
    assert details.ttl is not None
    assert 99 <= details.age <= 120
    assert 480 <= details.ttl <= 501
    assert not details.stale


async def test_stale_entries_are_counted_by_redis_clock(client: Any, real: float) -> None:
    await store_entry(client, entry_key(1), make_entry(created=real - 100, ttl=600.0))
    await store_entry(client, entry_key(2), make_entry(created=real - 700, ttl=600.0))
    assert (await collect_stats(client)).total.stale == 1


async def test_an_imported_entry_expires_by_redis_clock(client: Any, real: float) -> None:
    lines: list[bytes] = []
    await store_entry(client, entry_key(), make_entry(created=real, ttl=600.0), expires=600)
    await export_entries(client, ALL, lines.append)
    assert abs(json.loads(lines[0])["expires"] - real - 600) < 20
    await client.delete(entry_key())
    assert (await import_entries(client, lines)).stored == 1
    assert 580 < await client.ttl(entry_key()) <= 600
