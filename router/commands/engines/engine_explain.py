"""`roundhouse engines explain`: which engine a router would send a request to now, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from router.commands.admin_access import KeyFileOption, UrlOption
from router.commands.ask_router import ask_router
from router.commands.console import ConfigOption, JsonOption, fail, printable, write_json, write_table
from router.commands.request_body import RequestFile, read_request_body
from router.core.endpoints.chat import CHAT
from router.core.types import DEFAULT_TENANT
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:  # imported by the command, since they would slow all others down
    from router.flow.explain.choice_explainer import ChoiceExplanation, EngineChoice

_MAX_BODY: Final = 256 << 20  # bytes; the router has a limit of its own
_TITLES: Final = (
    "engine", "model", "behind by", "state", "prefix", "queue", "s/token", "in flight", "first token", "cost", "answer",
    "total",
)  # fmt: skip


def explain(
    file: RequestFile = Path("-"),
    config: ConfigOption = Path(DEFAULT_PATH),
    tenant: Annotated[str, typer.Option(help="Tenant of the request.")] = DEFAULT_TENANT,
    session: Annotated[str | None, typer.Option(help="X-Session-ID of the request.")] = None,
    path: Annotated[str, typer.Option(help="Endpoint path of the request.")] = CHAT.path,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain which engine a running router would send a request to now; nothing is sent to an engine."""
    from router.flow.explain.choice_explainer import ChoiceExplanation, ChoiceRequest

    body = read_request_body(file, _MAX_BODY)
    try:
        msgspec.json.decode(body)  # Raw is not checked, and would end up in the middle of another document
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        fail(f"{file}: the body is not JSON: {error}")
    question = msgspec.json.encode(ChoiceRequest(body, tenant, path, session))
    explanation = ask_router(
        "/admin/engines/explain", ChoiceExplanation, "explanation of choices",
        url=url, key_file=key_file, config=config, question=question,
    )  # fmt: skip
    write_json(explanation) if as_json else _write(explanation)


def _write(explanation: "ChoiceExplanation") -> None:
    tokens = "?" if explanation.prompt_tokens is None else f"{explanation.prompt_tokens:,}"
    typer.echo(
        printable(f"{explanation.model}, {explanation.task}, {tokens} prompt tokens; as {explanation.router} sees it")
    )
    if explanation.engines:
        write_table([_TITLES, *map(_table_row, explanation.engines)])
    for one in explanation.left_out:
        typer.echo(printable(f"not tried: {one.engine} ({one.model}): {_REASONS[one.reason]}"))
    if explanation.adjusted_fields:
        typer.echo(f"left out of the request: {', '.join(explanation.adjusted_fields)}")


_REASONS: Final = {
    "drained": "it is drained",
    "endpoint": "it does not have the endpoint",
    "fields": "it has a draft, with which it cannot apply all fields of the request",
    "context": "its context is too small",
}


def _table_row(choice: "EngineChoice") -> tuple[str, ...]:
    def number(value: Any, form: str) -> str:
        return "?" if value is None else f"{value:{form}}"

    state = choice.state if choice.breaker == "closed" else f"{choice.state}, breaker {choice.breaker}"
    limit = "" if choice.max_in_flight is None else f"/{choice.max_in_flight}"
    return (
        choice.engine,
        choice.model,
        choice.behind_by or "-",
        state,
        number(choice.prefix_tokens, ","),
        number(choice.queue_seconds, ".3f"),
        number(choice.seconds_per_token, ".2g"),
        f"{choice.in_flight}{limit}",
        number(choice.ttft_seconds, ".3f"),
        number(choice.cost_seconds, ".3f"),
        number(choice.answer_seconds, ".3f"),
        number(choice.total_seconds, ".3f"),
    )
