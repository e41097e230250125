"""`roundhouse status`: whether a router and what it needs are well, on one screen and as an exit code."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
import typer

from router.commands.admin_access import KeyFileOption, UrlOption, admin_key, router_url
from router.commands.console import ConfigOption, JsonOption, printable, write_json, write_table
from router.settings import DEFAULT_PATH
from router.shared.status.status_documents import Problem, StatusDocument

State = Literal["healthy", "degraded", "unhealthy", "unreachable"]

EXIT_CODES: Final[Mapping[State, int]] = {"healthy": 0, "degraded": 1, "unhealthy": 2, "unreachable": 2}

_MAX_PROBLEMS: Final = 12  # lines; all of them are in the JSON


class EngineHealth(msgspec.Struct, frozen=True):
    """As /healthz has it; None is unknown."""

    model: str
    task: str
    state: str
    drained: bool = False
    asleep: bool = False
    breaker: str = "closed"
    in_flight: int = 0
    running: float | None = None
    waiting: float | None = None
    kv_cache_usage: float | None = None


class Health(msgspec.Struct, frozen=True):
    """What is read of /healthz."""

    status: Literal["healthy", "degraded", "unhealthy"]
    redis: str
    engines: dict[str, EngineHealth]
    reason: str | None = None
    problems: list[Problem] | None = None


class RouterStatus(msgspec.Struct, frozen=True):
    """`problems`: what is wrong, a sentence each, the worst first; none if all is well."""

    url: str
    status: State
    problems: list[str]
    version: str | None = None
    redis: str | None = None
    engines: dict[str, EngineHealth] = {}


def status(
    config: ConfigOption = Path(DEFAULT_PATH), url: UrlOption = None, key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Show whether the router, its engines and Redis are well. Exit code: 0 well, 1 degraded, 2 down or no answer.

    It needs no admin key; with one, it also shows what is wrong with tenants and at other routers.
    """
    found = asyncio.run(read_status(router_url(url, config), admin_key(key_file, url, config)))
    write_json(found) if as_json else _write(found)
    raise typer.Exit(EXIT_CODES[found.status])


async def read_status(url: str, key: str | None = None) -> RouterStatus:
    """`key`: an administrator's. Whatever answers in another way than a router does is not reachable as one."""
    import httpx  # here, since it would slow every command down

    from router.commands.admin_client import CONNECT_TIMEOUT

    try:
        # Nothing of the environment: a proxy would answer for a router that is down.
        async with httpx.AsyncClient(timeout=CONNECT_TIMEOUT, trust_env=False) as http:
            answer = await http.get(f"{url}/healthz")
            version = await http.get(f"{url}/version")
        if answer.status_code not in (200, 503):
            return _unreachable(url, f"/healthz answers with status {answer.status_code}")
        health = msgspec.json.decode(answer.content, type=Health)
        found = msgspec.json.decode(version.content, type=dict[str, str]).get("version")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _unreachable(url, f"it does not answer ({type(error).__name__})")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _unreachable(url, "it is not a router, or of another version")
    problems = await _all_problems(url, key) if key is not None else None
    if problems is None:
        problems = problem_words(health)
    return RouterStatus(url, health.status, problems, found, health.redis, health.engines)


async def _all_problems(url: str, key: str) -> list[str] | None:
    """The problems of all routers and of tenants; None if the router does not send them."""
    from router.commands.admin_client import AdminClient, RouterError  # as above

    client = AdminClient(url, key, "status")
    try:
        document = await client.ask("/admin/status", StatusDocument)
    except RouterError as error:
        typer.echo(printable(f"without tenants: {error}"), err=True)
        return None
    finally:
        await client.aclose()
    return [problem.words for problem in document.problems]


def problem_words(health: Health) -> list[str]:
    """As the router says them; one of a former version says only the reason."""
    if health.problems is None:
        return [] if health.reason is None else [health.reason]
    return [problem.words for problem in health.problems]


def _unreachable(url: str, problem: str) -> RouterStatus:
    return RouterStatus(url, "unreachable", [problem])


def _write(found: RouterStatus) -> None:
    version = f"  {found.version}" if found.version is not None else ""
    redis = f"  Redis {found.redis}" if found.redis is not None else ""
    typer.echo(printable(f"{found.status}  {found.url}{version}{redis}"))
    for problem in found.problems[:_MAX_PROBLEMS]:
        typer.echo(printable(f"  {problem}"))
    if (more := len(found.problems) - _MAX_PROBLEMS) > 0:
        typer.echo(f"  … {more} more")
    if found.engines:
        typer.echo()
        titles = ("engine", "model", "task", "state", "breaker", "in flight", "running", "waiting", "kv cache")
        write_table([titles, *[_row(name, engine) for name, engine in found.engines.items()]])


def _row(name: str, engine: EngineHealth) -> tuple[str, ...]:
    notes = [engine.state, *["drained"] * engine.drained, *["asleep"] * engine.asleep]
    usage = "?" if engine.kv_cache_usage is None else f"{engine.kv_cache_usage:.0%}"
    return (
        name, engine.model, engine.task, ", ".join(notes), engine.breaker, str(engine.in_flight),
        _count(engine.running), _count(engine.waiting), usage,
    )  # fmt: skip


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"
