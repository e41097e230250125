"""What `roundhouse up` prints when everything is ready: where it serves, and what to try."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from engines.launcher import EngineCommand
from engines.plan import RouterSpec, UpPlan
from engines.redis_server import find_program


def banner(
    plan: UpPlan,
    commands: Mapping[str, EngineCommand],
    announce_problem: str | None = None,
    sign_in_link: str | None = None,
) -> str:
    """`commands`: of the engines that were started, by name. `announce_problem`: why not all could be announced.

    `sign_in_link`: of the dashboard.
    """
    return "\n".join(["", *_lines(plan, commands, announce_problem, sign_in_link), ""])


def _lines(
    plan: UpPlan, commands: Mapping[str, EngineCommand], announce_problem: str | None, sign_in_link: str | None
) -> Iterator[str]:
    logs = relative_path(Path(plan.state) / "logs")
    if plan.router is not None:
        yield f"Roundhouse serves on {plan.router.url} (OpenAI's API under {plan.router.url}/v1)"
    elif announce_problem is not None:
        yield f"The engines are ready, but not all are announced to the routers: {announce_problem}"
    else:
        yield "The engines are ready, and announced to the routers in Redis"
    yield ""
    for spec in plan.engines:
        what = commands[spec.name].description if spec.name in commands else "started elsewhere"
        yield f"  {spec.name:<12} {spec.url or 'placed by Ray'}  {spec.model}, {spec.task}: {what}"
    yield ""
    if plan.router is not None:
        yield from _examples(plan, plan.router)
        if sign_in_link is not None:
            yield "  open the dashboard with a link that works once, within 5 minutes (another: `roundhouse dashboard`)"
            yield f"    {sign_in_link}"
            yield ""
        yield f"  dashboard: {plan.router.url}/dashboard   metrics: {plan.router.url}/metrics"
        yield f"  logs: {logs}   stop: Ctrl-C"
    else:
        yield f"  logs: {logs}   stop: Ctrl-C"


def _examples(plan: UpPlan, router: RouterSpec) -> Iterator[str]:
    yield "  send it twice: the second response comes from Redis"
    yield f"    {_curl(plan, router, 'Tell me about the sea.')}"
    if {"chat", "code"} <= {spec.task for spec in plan.engines if spec.model == plan.example_model}:
        yield "  send code, too, and compare x-task and x-engine: each draft gets the prompts that it is good at"
        yield f"    {_curl(plan, router, 'Write a Python function that reverses a list.')}"
    yield "  list the stored entries"
    yield f"    {_redis_cli(plan)} --scan --pattern 'rh:1:default:*'"
    yield f"    {_redis_cli(plan)} HGETALL KEY   (the X-Cache-Key of a response)"
    yield ""


def _curl(plan: UpPlan, router: RouterSpec, prompt: str) -> str:
    body = f'{{"model": "{plan.example_model}", "messages": [{{"role": "user", "content": "{prompt}"}}]}}'
    return f"curl -i {router.url}/v1/chat/completions -d '{body}'"


def _redis_cli(plan: UpPlan) -> str:
    if plan.redis_socket is None:
        return "redis-cli -u URL"  # the configured URL may contain a password
    program = "redis-cli" if shutil.which("redis-cli") is not None else relative_path(Path(find_program("redis-cli")))
    return f"{program} -s {relative_path(Path(plan.redis_socket))}"


def relative_path(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
