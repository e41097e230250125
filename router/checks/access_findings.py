"""Judges from the configuration alone who may use the router."""

from collections.abc import Iterator

from router.checks.engine_findings import is_loopback
from router.checks.finding import Finding, Problem, wrong
from router.settings import Settings
from router.settings.mistakes import written


def judge_access(settings: Settings) -> Iterator[Finding]:
    auth, router = settings.auth, settings.router
    if settings.auth_mode == "open" and not is_loopback(router.host):
        note = f"whoever reaches {router.host}:{router.port} may use it without a key"
        fix = 'set "keys", unless a proxy in front of it asks for one'
        yield wrong("authentication", "auth.mode", Problem(note, fix), "warning")
    if settings.auth_mode == "keys":
        for index, tenant in enumerate(settings.tenant):
            if not tenant.keys:
                problem = Problem("has no key, so nobody can send its requests", "`roundhouse keys new` makes one")
                yield wrong(f"tenant {tenant.name}", written(("tenant", index, "keys")), problem, "warning")
    if settings.auth_mode != "open" and not auth.admin_keys:
        problem = Problem("closed, like /admin: there is no admin key", "`roundhouse keys new` makes one")
        yield wrong("dashboard", "auth.admin_keys", problem, "warning")
