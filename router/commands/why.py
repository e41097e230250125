"""`roundhouse why`: what happened to a request, on one screen."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from router.commands.admin_access import KeyFileOption, UrlOption
from router.commands.ask_router import ask_router
from router.commands.console import ConfigOption, JsonOption, fail, print_err, printable, write_json
from router.settings import DEFAULT_PATH
from router.shared.status.request_explanation import explain
from router.shared.status.status_documents import ExplainedRequestsDocument, ExplainedRow


def why(
    request_id: Annotated[
        str | None, typer.Argument(help="Its x-request-id; by default, the newest request that failed.")
    ] = None,
    config: ConfigOption = Path(DEFAULT_PATH),
    slow: Annotated[bool, typer.Option("--slow", help="The newest one that was slower than most of its model.")] = (
        False
    ),
    failed: Annotated[bool, typer.Option("--failed", help="The newest one that failed.")] = False,
    tenant: Annotated[str | None, typer.Option(help="Only requests of this tenant.")] = None,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to a request: what the cache said, how long it waited for what, and which engines failed."""

    def ask(**more: str) -> ExplainedRequestsDocument:
        query = {"limit": "20", "words": "1", "id": request_id, "tenant": tenant, **more}
        wanted = urlencode({name: value for name, value in query.items() if value is not None}, errors="replace")
        return ask_router(
            f"/admin/requests?{wanted}", ExplainedRequestsDocument, "list of the latest requests",
            url=url, key_file=key_file, config=config,
        )  # fmt: skip

    if failed or (request_id is None and not slow):
        # One failure must not be lost among thousands that were refused for what their clients sent.
        found = ask(failed="1", refused="0")
        found = found if found.requests else ask(failed="1")
    else:
        found = ask(**({"slow": "1"} if slow else {}))
    if not found.all_routers:
        print_err("Redis is down or takes no writes: only the requests of the process that answered are known.")
    if not found.requests:
        fail(_nothing_found(request_id, slow=slow, everywhere=found.all_routers))
    row = found.requests[0]
    if request_id is not None and len(found.requests) > 1:
        tenants = sorted({each.tenant for each in found.requests})
        print_err(f"{len(found.requests)} requests had this id, of {', '.join(tenants)}; this is the newest (--tenant)")
    if as_json:
        write_json(row if row.words else explain(row))
        return
    for line in screen(row):
        typer.echo(printable(" ".join(line.splitlines())))


def screen(row: ExplainedRow) -> Iterator[str]:
    """The lines about a request. A router of an earlier version sends no words, so they are made here."""
    yield f"{row.request_id}  {datetime.fromtimestamp(row.at).astimezone():%Y-%m-%d %H:%M:%S}"
    before = ""
    for line in row.words or explain(row).words:
        name = line.name if line.name != before else ""
        before = line.name
        amount, unit, rest = line.text.partition(" ms ")
        text = f"{amount:>10}{unit} {rest}" if line.name == "time" else line.text
        yield f"  {name:<9} {text}"


def _nothing_found(request_id: str | None, *, slow: bool, everywhere: bool) -> str:
    if request_id is not None and not everywhere:
        return f"the process that answered does not remember the request {request_id}; another one may"
    if request_id is not None:
        return f"no router remembers the request {request_id}; each process keeps its last 256, and its log has all"
    return f"no request that {'was slow' if slow else 'failed'} is remembered"
