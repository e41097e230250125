"""`roundhouse cache export` and `import`: entries as lines of JSON, from one Redis to another."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from router.commands.cache.options import DocumentOption, ModelOption, RagOption, SystemOption, TenantOption
from router.commands.console import (
    EXIT_USAGE,
    STDIO,
    ConfigOption,
    JsonOption,
    fail,
    load_settings,
    open_output,
    print_err,
    progress,
    write_json,
)
from router.commands.redis import parse_filter, with_audit, with_redis
from router.commands.termination import exit_if_ended
from router.core.plural import pluralize
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.store.admin.export_import import ExportResult, ImportResult
    from router.store.admin.scan import RedisClient


def export_(
    file: Annotated[Path, typer.Argument(help="Output file; - is standard output.")] = STDIO,
    config: ConfigOption = Path(DEFAULT_PATH),
    tenant: TenantOption = None,
    model: ModelOption = None,
    system: SystemOption = None,
    rag: RagOption = None,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write entries to a file, a line of JSON each. They contain responses: protect the file accordingly."""
    from router.store.admin.export_import import export_entries

    entry_filter = parse_filter(tenant=tenant, model=model, system=system, rag=rag, document=document)
    settings = load_settings(config)

    async def work(client: "RedisClient") -> "ExportResult":
        with open_output(file) as stream, progress("entries exported") as on_progress:
            return await export_entries(client, entry_filter, stream.write, on_progress)

    try:
        result = with_redis(settings, config, work)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    rest = f"; skipped {pluralize(result.left_out, 'key')} without a valid entry" if result.left_out else ""
    _report(
        result,
        f"exported {pluralize(result.entries, 'entry', 'entries')}{rest}",
        as_json=as_json,
        stdout_in_use=file == STDIO,
    )


def import_from(
    file: Annotated[Path, typer.Argument(help="Exported file; - is standard input.")] = STDIO,
    config: ConfigOption = Path(DEFAULT_PATH),
    as_json: JsonOption = False,
) -> None:
    """Store the entries of an exported file. An entry that is in Redis already and not older is kept."""
    from router.shared.audit.changes import Change, entries_imported
    from router.store.admin.export_import import ImportLineError, import_entries, read_lines
    from router.store.admin.scan import LastCount

    settings = load_settings(config)
    stored = LastCount()

    async def work(client: "RedisClient") -> "ImportResult":
        with _open_input(file) as stream, progress("entries imported") as on_progress:

            def read_line(limit: int) -> bytes:
                exit_if_ended()
                return stream.readline(limit)

            return await import_entries(client, read_lines(read_line), on_progress, stored)

    def stopped(error: BaseException) -> list[Change]:
        return [entries_imported(file.name, stored.value, error)] if stored.value is not None else []

    try:
        audited = with_audit(settings, work, lambda done: [entries_imported(file.name, done.stored)], stopped)
        result = with_redis(settings, config, audited)
    except ImportLineError as error:
        fail(f"{file}: {error}")
    except OSError as error:
        fail(f"{file}: {error.strerror}", EXIT_USAGE)
    rest = (
        f"; {result.older:,} were not newer than those in Redis, {result.expired:,} had expired"
        if result.older or result.expired
        else ""
    )
    _report(result, f"imported {pluralize(result.stored, 'entry', 'entries')}{rest}", as_json=as_json)


@contextlib.contextmanager
def _open_input(file: Path) -> Iterator[BinaryIO]:
    if file == STDIO:
        if sys.stdin.isatty():
            print_err("reading exported entries from standard input; end with Ctrl-D")
        yield sys.stdin.buffer
        return
    with file.open("rb") as stream:
        yield stream


def _report(result: "ExportResult | ImportResult", summary: str, *, as_json: bool, stdout_in_use: bool = False) -> None:
    if as_json and not stdout_in_use:
        write_json(result)
    else:
        print_err(summary)
