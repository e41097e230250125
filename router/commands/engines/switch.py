"""`roundhouse engines switch` and `rollback`: requests to `roundhouse up`; engines/control.py serves them."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonOption,
    fail,
    load_settings,
    print_err,
    write_json,
    write_table,
)
from router.core.plural import pluralize
from router.settings import DEFAULT_PATH

_MAX_LINE: Final = 64 << 20  # bytes; the report about a thousand requests has some megabytes

NameArgument = Annotated[str, typer.Argument(help="Engine name, as in `roundhouse engines list`.")]
AfterOption = Annotated[bool, typer.Option("--after", help="Stop the old engine first; the model's fallback answers.")]
DrainTimeoutOption = Annotated[
    float, typer.Option(min=0, max=86400, help="Seconds until an old engine is stopped although it is busy.")
]


class ControlError(Exception):
    """`roundhouse up` has not done what was asked for; the message is one line with the reason."""


class _Event(msgspec.Struct):
    step: str
    message: str


class _Line(msgspec.Struct):
    event: _Event | None = None
    error: str | None = None
    result: dict[str, Any] | None = None


def switch(
    name: NameArgument,
    target: Annotated[str | None, typer.Option(help="New target model; by default the present one.")] = None,
    draft: Annotated[str | None, typer.Option(help="New draft model; by default the present one.")] = None,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Run without a draft.")] = False,
    revision: Annotated[
        str | None, typer.Option(help="New revision, part of the cache key; by default the name of a new target.")
    ] = None,
    shadow: Annotated[
        int, typer.Option(min=0, max=1000, help="First replay N recent requests at both, and report how they differ.")
    ] = 0,
    after: AfterOption = False,
    drain_timeout: DrainTimeoutOption = 600.0,
    config: ConfigOption = Path(DEFAULT_PATH),
    as_json: JsonOption = False,
) -> None:
    """Replace the model of an engine that `roundhouse up` has started, without a failed request."""
    if target is None and draft is None and not no_draft and revision is None:
        fail("nothing to change; give --target, --draft, --no-draft or --revision", EXIT_USAGE)
    if draft is not None and no_draft:
        fail("--draft and --no-draft: give only one of them", EXIT_USAGE)
    options = {"engine": name, "target": target, "draft": draft, "no_draft": no_draft, "revision": revision}
    request = {"switch": {**options, "shadow": shadow, "after": after, "drain_timeout": drain_timeout}}
    _run(request, name, config, as_json=as_json)


def rollback(
    name: NameArgument,
    after: AfterOption = False,
    drain_timeout: DrainTimeoutOption = 600.0,
    config: ConfigOption = Path(DEFAULT_PATH),
    as_json: JsonOption = False,
) -> None:
    """Give an engine the models and the revision back that it had before its last switch."""
    request = {"rollback": {"engine": name, "after": after, "drain_timeout": drain_timeout}}
    _run(request, name, config, as_json=as_json)


def _run(request: dict[str, Any], name: str, config: Path, *, as_json: bool) -> None:
    settings = load_settings(config)
    try:
        result = exchange(settings.control_socket, request, lambda step, text: print_err(f"{step}: {text}"))
    except ConnectionError:
        fail(f"no `roundhouse up` with {config} runs on this machine; {name} was not switched")
    except ControlError as error:
        fail(f"{name} was not switched: {error}")
    if as_json:
        write_json(result)
    else:
        _write_result(result)


def exchange(control_socket: Path, request: dict[str, Any], on_event: Callable[[str, str], None]) -> dict[str, Any]:
    """Sends a request and returns its result. `on_event` gets the step and the message of each event.

    Raises ConnectionError if nothing listens at the socket, and ControlError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(control_socket))
        except OSError:
            raise ConnectionRefusedError from None
        try:
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                while line := lines.readline(_MAX_LINE):
                    reply = msgspec.json.decode(line, type=_Line)
                    if reply.event is None:
                        break
                    on_event(reply.event.step, reply.event.message)
                else:
                    raise ControlError("`roundhouse up` was stopped")
        except OSError:
            raise ControlError("`roundhouse up` was stopped") from None
    if reply.error is not None or reply.result is None:
        raise ControlError(reply.error or "no result")
    return reply.result


def _write_result(result: dict[str, Any]) -> None:
    if result["shadow"] is not None:
        _write_shadow(result["shadow"])
    for engine in result["engines"]:
        draft = f" + {engine['draft']}" if engine["draft"] is not None else ""
        busy = "; the old engine was stopped with requests running there" if engine["stopped_busy"] else ""
        typer.echo(f"{engine['name']} serves {engine['target']}{draft} at {engine['url']}{busy}")
    typer.echo(f"model {result['model']} has the revision {result['revision']!r}")


def _write_shadow(shadow: dict[str, Any]) -> None:
    rows = [("request", "fixed", "text", "tokens", "", "seconds", "")]
    for one in shadow["comparisons"]:
        old, new = one["old"], one["new"]
        failure = new["error"] or old["error"]
        text = failure or ("same" if one["same"] else "different")
        tokens = tuple("?" if answer["tokens"] is None else str(answer["tokens"]) for answer in (old, new))
        seconds = tuple(f"{answer['seconds']:.2f}" for answer in (old, new))
        rows.append(
            (one["prompt"].replace("\n", " "), "yes" if one["deterministic"] else "no", text, *tokens, *seconds)
        )
    write_table(rows)
    typer.echo(
        f"{pluralize(shadow['requests'], 'request')}: {shadow['same']} same, {shadow['different']} different "
        f"({shadow['deterministic_different']} with temperature 0 or a seed), "
        f"{shadow['failed_old']} failed at the old engine, {shadow['failed_new']} at the new one; "
        f"tokens {shadow['tokens_old']} and {shadow['tokens_new']}, "
        f"seconds {shadow['seconds_old']:.1f} and {shadow['seconds_new']:.1f}"
    )
