"""`roundhouse batch run`: sends a file of requests, waits for its end, and fetches the results."""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, NoReturn

import typer

from router.commands.batch.batch_words import EXIT_INTERRUPTED, exit_code, summary
from router.commands.batch.router_access import KEY_VARIABLE, RouterOptions
from router.commands.batch.run_arguments import (
    check_input,
    check_outputs,
    check_window,
    endpoint_of,
    parse_metadata,
)
from router.commands.console import EXIT_USAGE, STDIO, JsonOption, fail, print_err, write_json

if TYPE_CHECKING:  # imported by the command, since they would slow all others down
    from router.commands.batch.api_client import ApiClient
    from router.commands.batch.batch_view import Batch
    from router.commands.batch.progress_display import Display


_PERHAPS: Final = "`roundhouse batch ls` shows whether the batch has begun"


class OutputOptions(NamedTuple):
    """Where the results go."""

    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for the answers; - is standard output.")] = None
    errors: Annotated[Path | None, typer.Option(help="File for the lines that failed, with their errors.")] = None
    only_store: Annotated[
        bool, typer.Option("--only-store", help="Fetch no results: the answers are in the cache for those who ask.")
    ] = False


class BatchOptions(NamedTuple):
    """What the batch is to be. The names are those of its API."""

    endpoint: Annotated[
        str | None, typer.Option(help="Endpoint of the requests; by default the `url` of the first line.")
    ] = None
    window: Annotated[str, typer.Option(help="The time for all lines, such as 90m, 24h or 7d.")] = "24h"
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What the batch is to show; can be repeated.")
    ] = None
    cache_control: Annotated[str | None, typer.Option(help="Cache-Control of each request, such as no-store.")] = None


class _Order(NamedTuple):
    """A file of requests, and the batch that it is to become."""

    file: Path
    endpoint: str
    window: str
    metadata: dict[str, str]


def run(
    outputs: OutputOptions,
    asked: BatchOptions,
    router: RouterOptions,
    file: Annotated[
        Path | None, typer.Argument(help="Requests as JSON lines: `custom_id`, `method`, `url`, `body`.")
    ] = (None),
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="ID", help="Wait for this batch, in place of a new one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a file of requests as a batch, show its progress, and fetch the results.

    Ctrl-C leaves the batch running. Exit codes: 0 all lines are answered, 1 the router cannot be asked, 2 wrong usage,
    3 some lines failed, 4 the batch failed, expired or was cancelled, 130 Ctrl-C.
    """
    from router.commands.batch.api_client import ApiClientError, KeyNeededError

    if (file is None) == (wait is None):
        fail("batch run: give a file of requests, or --wait with the id of a batch", EXIT_USAGE)
    if (outputs.out is None) != outputs.only_store:
        fail("batch run: give --out FILE for the answers, or --only-store", EXIT_USAGE)
    check_outputs({"--out": outputs.out, "--errors": outputs.errors}, file)
    order = None if file is None else _order(file, asked)
    with router.client() as client:
        run_ = _Run(client, outputs, router)
        try:
            run_.to_the_end(wait or "", order)
        except KeyNeededError as error:
            run_.leave(f"{error} Set {KEY_VARIABLE} or --key-file.", as_json=as_json)
        except ApiClientError as error:
            run_.leave(str(error), as_json=as_json)
        except KeyboardInterrupt:
            run_.interrupted(as_json=as_json)
    run_.report(as_json=as_json)


def _order(file: Path, asked: BatchOptions) -> _Order:
    metadata = parse_metadata(asked.metadata or [], asked.cache_control)
    check_window(asked.window)
    check_input(file)
    return _Order(file, asked.endpoint or endpoint_of(file), asked.window, metadata)


class _Run:
    """`_batch`: as it was seen last, None before there is one. `_is_asked_for`: whether there may be one."""

    def __init__(self, client: "ApiClient", outputs: OutputOptions, router: RouterOptions) -> None:
        from router.commands.batch.follow import Waiting

        self._client = client
        self._outputs = outputs
        self._router = router
        self._batch: Batch | None = None
        self._is_asked_for = False
        self._waiting: Waiting = Waiting()

    def to_the_end(self, id_: str, order: _Order | None) -> None:
        """Raises ApiClientError and KeyboardInterrupt."""
        from router.commands.batch.follow import follow
        from router.commands.batch.progress_display import open_display

        with open_display() as display:
            if order is not None:
                batch = self._begin(order, display)
                self._keep(batch)
                id_ = batch.view.id
                display.say(f"{id_} has begun; Ctrl-C leaves it running")
            batch = follow(self._client, id_, display, self._keep, self._waiting)
            self._fetch_results(batch, display)

    def _keep(self, batch: "Batch") -> None:
        self._batch = batch

    def _begin(self, order: _Order, display: "Display") -> "Batch":
        from router.commands.batch.api_client import ApiClientError, NoAnswerError

        size = order.file.stat().st_size
        on_bytes = display.bytes_of(f"sending {order.file.name}")
        try:
            file_id = self._client.upload(order.file, lambda done: on_bytes(done, size))
        except OSError as error:
            fail(f"{order.file}: {error.strerror}")
        # From here on, there may be a batch whose id is unknown.
        self._is_asked_for = True
        try:
            return self._client.create(file_id, order.endpoint, order.window, order.metadata)
        except NoAnswerError as error:
            fail(f"{error}; {_PERHAPS}")
        except ApiClientError:
            with contextlib.suppress(ApiClientError):
                self._client.delete_file(file_id)  # nothing else would
            raise

    def _fetch_results(self, batch: "Batch", display: "Display") -> None:
        from router.commands.batch.follow import fetch

        view = batch.view
        wanted = ((self._outputs.out, view.output_file_id), (self._outputs.errors, view.error_file_id))
        # Also of a batch that was cancelled or has expired: the lines that are answered are in its results.
        for path, id_ in wanted:
            if path is not None:
                try:
                    fetch(self._client, id_, path, display, self._waiting)
                except OSError as error:
                    self._fail_with_hint(f"{path}: {error.strerror}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def report(self, *, as_json: bool) -> None:
        assert self._batch is not None
        batch = self._batch.view
        for line in summary(batch):
            print_err(line)
        if batch.counts.failed and self._outputs.errors is None:
            print_err(f"to fetch the errors: {self._command('--errors ERRORS.jsonl')}")
        self._write(as_json=as_json)
        if (code := exit_code(batch)) != 0:
            raise typer.Exit(code)

    def leave(self, message: str, *, as_json: bool) -> NoReturn:
        self._write(as_json=as_json)
        self._fail_with_hint(message)

    def interrupted(self, *, as_json: bool) -> NoReturn:
        if self._batch is None:
            print_err(_PERHAPS if self._is_asked_for else "nothing has begun")
        elif self._batch.view.has_ended:
            print_err(f"the results are still there: {self._command()}")
        else:
            print_err(f"{self._batch.view.id} keeps running. To come back: {self._command()}")
        self._write(as_json=as_json)
        raise typer.Exit(EXIT_INTERRUPTED)

    def _fail_with_hint(self, message: str) -> NoReturn:
        hint = "" if self._batch is None else f"; to come back: {self._command()}"
        fail(f"{message}{hint}")

    def _write(self, *, as_json: bool) -> None:
        # Standard output has the results or the object: a program could not tell them apart.
        if as_json and self._batch is not None and STDIO not in (self._outputs.out, self._outputs.errors):
            write_json(self._batch.shown)

    def _command(self, more: str = "") -> str:
        """That waits for the batch."""
        assert self._batch is not None
        words = [
            "roundhouse",
            "batch",
            "run",
            "--wait",
            self._batch.view.id,
            *self._places(),
            *self._router.arguments(),
        ]
        return f"{shlex.join(words)} {more}".rstrip()

    def _places(self) -> Iterator[str]:
        if self._outputs.only_store:
            yield "--only-store"
        if self._outputs.out is not None:
            yield from ("--out", str(self._outputs.out))
        if self._outputs.errors is not None:
            yield from ("--errors", str(self._outputs.errors))
