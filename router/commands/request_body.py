"""A request's body as the argument of a command."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from router.commands.console import EXIT_USAGE, fail, print_err

RequestFile = Annotated[Path, typer.Argument(help="Request body as JSON; - is standard input.")]


def read_request_body(file: Path, limit: int) -> msgspec.Raw:
    if str(file) == "-":
        if sys.stdin.isatty():
            print_err("reading the request body from standard input; end with Ctrl-D")
        body = sys.stdin.buffer.read(limit + 1)  # one more byte shows that it is too large
    else:
        try:
            with file.open("rb") as stream:
                body = stream.read(limit + 1)
        except OSError as error:
            fail(f"{file}: {error.strerror}", EXIT_USAGE)
    if len(body) > limit:
        fail(f"{file}: the body has more than {limit} bytes (router.max_body)", EXIT_USAGE)
    return msgspec.Raw(body)
