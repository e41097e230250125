"""Judges who may use the router: the configuration, and the API keys in Redis."""

from collections.abc import Collection, Iterator
from typing import Final

from router.checks.engine_findings import is_loopback
from router.checks.finding import Finding, Problem, wrong
from router.core.api_keys import KeyRecord
from router.settings import Settings
from router.settings.mistakes import written

_NEW_KEY: Final = "`roundhouse keys new` makes one"


def judge_access(settings: Settings, stored: Collection[KeyRecord] | None, now: float) -> Iterator[Finding]:
    """`stored`: the keys in Redis; None if they are unknown. `now` in seconds since the epoch."""
    auth, router = settings.auth, settings.router
    if settings.auth_mode == "open" and auth.mode is None and stored:
        note = "Redis has API keys, and the file has neither keys nor a mode: every request gets 503"
        yield wrong("authentication", "auth.mode", Problem(note, 'set "keys" or "open"'))
    elif settings.auth_mode == "open" and not is_loopback(router.host):
        note = f"every client that can connect to {router.host}:{router.port} may use it without a key"
        fix = 'set "keys", unless a proxy in front of it asks for one'
        yield wrong("authentication", "auth.mode", Problem(note, fix), "warning")
    if settings.auth_mode == "keys":
        yield from _tenants_without_keys(settings, stored, now)
    if settings.auth_mode != "open" and not auth.admin_keys:
        problem = Problem("closed, like /admin: there is no admin key", _NEW_KEY)
        yield wrong("dashboard", "auth.admin_keys", problem, "warning")


def _tenants_without_keys(settings: Settings, stored: Collection[KeyRecord] | None, now: float) -> Iterator[Finding]:
    with_key = {record.tenant for record in stored or () if record.is_valid(now)}
    for index, tenant in enumerate(settings.tenant):
        if not tenant.keys and tenant.name not in with_key:
            note = "has no key, here or in Redis, so nobody can send its requests"
            if stored is None:
                note = "has no key here, and Redis does not tell whether it has one there"
            place = written(("tenant", index, "keys"))
            yield wrong(f"tenant {tenant.name}", place, Problem(note, _NEW_KEY), "warning")
