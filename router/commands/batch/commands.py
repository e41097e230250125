"""`roundhouse batch`: runs files of requests, and shows, cancels, pauses and resumes batches."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.batch.batch_words import details, row, titles
from router.commands.batch.grouped_options import with_grouped_options
from router.commands.batch.router_access import KEY_VARIABLE, RouterOptions
from router.commands.batch.run import run
from router.commands.console import JsonLinesOption, JsonOption, fail, printable, write_json, write_table
from router.commands.suggestions import command_group

if TYPE_CHECKING:  # imported by the commands that need it, since it would slow all others down
    from router.commands.batch.api_client import ApiClient

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The batch, as in `roundhouse batch ls`.")]

app = command_group("Run a file of requests on what the engines have left; list, cancel, pause and resume batches.")
app.command(name="run")(with_grouped_options(run))


@contextlib.contextmanager
def _open_client(router: RouterOptions) -> Iterator["ApiClient"]:
    """An error of the router ends the command."""
    from router.commands.batch.api_client import ApiClientError, KeyNeededError

    try:
        with router.client() as client:
            yield client
    except KeyNeededError as error:
        fail(f"{error} Set {KEY_VARIABLE} or --key-file.")
    except ApiClientError as error:
        fail(str(error))


@app.command()
@with_grouped_options
def ls(router: RouterOptions, as_json: JsonLinesOption = False) -> None:
    """List the tenant's batches, the newest first."""
    views = []
    with _open_client(router) as client:
        for page in client.pages():
            for batch in page:
                write_json(batch.shown) if as_json else views.append(batch.view)
    if views:
        with_cached = any(view.counts.cached is not None for view in views)
        write_table([titles(with_cached=with_cached), *(row(view, with_cached=with_cached) for view in views)])


@app.command()
@with_grouped_options
def show(id_: IdArgument, router: RouterOptions, as_json: JsonOption = False) -> None:
    """Show a batch: how far it is, why it waits, and its files."""
    with _open_client(router) as client:
        batch = client.find(id_)
    if as_json:
        write_json(batch.shown)
        return
    for name, value in details(batch.view):
        typer.echo(printable(f"{name}: {value}"))


@app.command()
@with_grouped_options
def cancel(id_: IdArgument, router: RouterOptions, as_json: JsonOption = False) -> None:
    """Cancel a batch. The lines that are answered stay in its results."""
    _change(router, id_, "cancel", as_json=as_json)


@app.command()
@with_grouped_options
def pause(id_: IdArgument, router: RouterOptions, as_json: JsonOption = False) -> None:
    """Begin no more lines of a batch until it is resumed."""
    _change(router, id_, "pause", as_json=as_json)


@app.command()
@with_grouped_options
def resume(id_: IdArgument, router: RouterOptions, as_json: JsonOption = False) -> None:
    """Let a batch that was paused go on."""
    _change(router, id_, "resume", as_json=as_json)


def _change(router: RouterOptions, id_: str, action: str, *, as_json: bool) -> None:
    with _open_client(router) as client:
        batch = client.change(id_, action)
    if as_json:
        write_json(batch.shown)
        return
    state = f"{batch.view.status}, paused" if batch.view.paused else batch.view.status
    typer.echo(printable(f"{batch.view.id} is {state}"))
