"""`roundhouse audit`: what administrators changed, and whether the record of it is whole."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonOption,
    fail,
    load_settings,
    print_err,
    progress,
    write_json,
    write_table,
)
from router.commands.redis import with_redis
from router.core.plural import pluralize
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # imported by the command, since they would slow all others down
    from router.shared.audit.audit_stream import AuditEntry
    from router.store.admin.scan import RedisClient


def audit(
    config: ConfigOption = Path(DEFAULT_PATH),
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of changes.")] = 50,
    before: Annotated[str | None, typer.Option(help="Only changes before this id, as a page before said it.")] = None,
    action: Annotated[str | None, typer.Option(help="Only changes of this kind, such as drain or purge.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the chain of the hashes of all entries.")] = False,
    hashes: Annotated[
        list[str] | None,
        typer.Option("--hash", help="With --verify: a hash of a log line, which the chain must have. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what administrators changed: when, who, what; or check that nothing of it was altered."""
    settings = load_settings(config)
    if hashes and not verify:
        fail("--hash: only possible with --verify", EXIT_USAGE)
    if verify:
        _verify(settings, config, hashes or [], as_json=as_json)
        return
    from router.shared.audit.changes import ACTIONS
    from router.store.admin.audit import AuditQuery, fetch_audit, is_entry_id

    if before is not None and not is_entry_id(before):
        fail("--before: expected the id of an entry, such as 1796000000000-0", EXIT_USAGE)
    if action is not None and action not in ACTIONS:
        fail(f"--action: expected one of {', '.join(ACTIONS)}", EXIT_USAGE)
    query = AuditQuery(limit=limit, before=before, action=action)
    page = with_redis(settings, config, lambda client: fetch_audit(client, query))
    if as_json:
        write_json(page)
    elif page.entries:
        write_table([("number", "time (UTC)", "who", "what", "of", "details"), *map(_cells, page.entries)])
        if page.before is not None:
            typer.echo(f"more changes: --before {page.before}")
    else:
        typer.echo("no changes are recorded" if action is None else f"no {action} is recorded")


def _cells(entry: "AuditEntry") -> tuple[str, ...]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry.at))
    details = ", ".join(f"{name} {_detail(value)}" for name, value in entry.details.items())
    return str(entry.number), at, entry.actor, entry.action, entry.subject, details or "-"


def _detail(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"


def _verify(settings: Settings, config: Path, hashes: list[str], *, as_json: bool) -> None:
    from router.store.admin.audit import check_audit

    missing = dict.fromkeys(hashes)

    async def check(client: "RedisClient") -> "Any":
        with progress("entries checked") as on_progress:
            return await check_audit(client, lambda hash_: missing.pop(hash_, None), on_progress)

    report = with_redis(settings, config, check)
    if as_json:
        write_json({"ok": report.broken is None and not missing, "missing": list(missing), **_fields(report)})
    elif report.broken is None:
        if not report.entries:
            typer.echo("no changes are recorded")
        trimmed = f", after {report.trimmed:,} that are not kept any more" if report.trimmed else ""
        if report.newest is not None:
            typer.echo(f"{pluralize(report.entries, 'entry', 'entries')}{trimmed}: each follows from the one before it")
            typer.echo(f"newest hash: {report.newest}")
    if report.broken is not None:
        number = f"entry {report.broken.number}" if report.broken.number is not None else "an entry"
        print_err(f"{pluralize(report.entries, 'entry', 'entries')} before it: each follows from the one before it")
        fail(f"the audit was altered at {number} ({report.broken.id}): {report.broken.problem}")
    if missing:
        fail(f"the audit does not have {', '.join(missing)}")


def _fields(report: Any) -> dict[str, Any]:
    from msgspec.structs import asdict

    return asdict(report)
