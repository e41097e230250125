"""`roundhouse cache export` and `import`: entries as lines of JSON, from one Redis to another."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from router.commands.console import WRONG_USE, Config, Json, amount, fail, progress, say, settings_of, write_json
from router.commands.options import Document, Model, Rag, System, Tenant
from router.commands.redis import narrowed, with_redis
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:  # what only these commands need would slow all others down
    from router.store.admin.export_import import Exported, Imported
    from router.store.admin.scan import Client

STANDARD: Final = Path("-")
"""Standard input or output."""


def export_(
    file: Annotated[Path, typer.Argument(help="Where to; - is standard output.")] = STANDARD,
    config: Config = Path(DEFAULT_PATH),
    tenant: Tenant = None,
    model: Model = None,
    system: System = None,
    rag: Rag = None,
    document: Document = None,
    as_json: Json = False,
) -> None:
    """Write entries to a file, a line of JSON each. They hold answers: keep the file as you keep those."""
    from router.store.admin.export_import import export

    scope = narrowed(tenant=tenant, model=model, system=system, rag=rag, document=document)
    settings = settings_of(config)

    async def work(client: "Client") -> "Exported":
        with _written(file) as opened, progress("entries exported") as done:
            return await export(client, scope, opened.write, done)

    try:
        told = with_redis(settings, config, work)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    rest = f"; left out {amount(told.left_out, 'key')} that hold none" if told.left_out else ""
    _tell(told, f"exported {amount(told.entries, 'entry', 'entries')}{rest}", as_json=as_json, apart=file == STANDARD)


@contextlib.contextmanager
def _written(file: Path) -> Iterator[BinaryIO]:
    """A file that is there only once it is whole, and that nobody else can read."""
    if file == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if file.exists() and not file.is_file():  # a device or a pipe, in whose place no file may be put
        with file.open("wb") as opened:
            yield opened
        return
    part = file.with_name(f"{file.name}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
            yield opened
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def import_from(
    file: Annotated[Path, typer.Argument(help="What was exported; - is standard input.")] = STANDARD,
    config: Config = Path(DEFAULT_PATH),
    as_json: Json = False,
) -> None:
    """Store the entries of a file that was exported. What is as new, or newer, stays as it is."""
    from router.store.admin.export_import import LineError, import_, lines_of

    settings = settings_of(config)

    async def work(client: "Client") -> "Imported":
        with _read(file) as opened, progress("entries imported") as done:
            return await import_(client, lines_of(opened.readline), done)

    try:
        told = with_redis(settings, config, work)
    except LineError as error:
        fail(f"{file}: {error}")
    except OSError as error:
        fail(f"{file}: {error.strerror}", WRONG_USE)
    rest = f"; {told.older:,} were there as new, {told.expired:,} had expired" if told.older or told.expired else ""
    _tell(told, f"imported {amount(told.stored, 'entry', 'entries')}{rest}", as_json=as_json)


@contextlib.contextmanager
def _read(file: Path) -> Iterator[BinaryIO]:
    if file == STANDARD:
        if sys.stdin.isatty():
            say("reading exported entries from standard input; end with Ctrl-D")
        yield sys.stdin.buffer
        return
    with file.open("rb") as opened:
        yield opened


def _tell(told: "Exported | Imported", words: str, *, as_json: bool, apart: bool = False) -> None:
    """What it came to; apart from standard output, where that holds the entries."""
    if as_json and not apart:
        write_json(told)
    else:
        say(words)
