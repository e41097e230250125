"""`roundhouse init`: writes a configuration file for engines that run, which it asks what they serve."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from router.commands.console import EXIT_USAGE, fail, output_problem, print_err
from router.commands.first_options import (
    ApiKeyEnvOption,
    EngineUrlOption,
    ServedModelOption,
    check_api_key_env,
    check_engine_urls,
    check_key_of,
    check_tenants,
    is_variable,
)
from router.commands.local_key import new_key
from router.core.api_keys import hash_key
from router.discovery.configuration_text import DEFAULT_REDIS, FirstKeys, configuration_text, without_passwords
from router.discovery.plan import Answer, Plan, plan
from router.net.redis.url import find_url_problems, parse_redis_url
from router.settings import DEFAULT_PATH, EMBEDDED
from router.settings.addresses import base_url, is_engine_url

_DEFAULT_ENGINE: Final = "http://127.0.0.1:8000"
_DEFAULT_KEY_VARIABLE: Final = "VLLM_API_KEY"
_REDIS_TIMEOUT: Final = 2.0  # seconds
_DEFAULT_PORT: Final = 8080


def init(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", "--output", "-o", envvar="ROUNDHOUSE_CONFIG", help="The file to write."),
    ] = Path(DEFAULT_PATH),
    engine: EngineUrlOption = None,
    redis: Annotated[str | None, typer.Option(metavar="URL", help="URL of Redis.")] = None,
    model: ServedModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port of the router.")] = _DEFAULT_PORT,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A tenant that gets a key, which is printed; may be repeated."),
    ] = None,
    admin_key: Annotated[
        bool, typer.Option("--admin-key", help="Make a key for /admin and the dashboard, and print it.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a configuration file for your engines, after asking them which models they serve.

    On a terminal, it asks for what the options do not say.
    """
    if config.exists() and not force:
        fail(f"{config} exists already; --force overwrites it", EXIT_USAGE)
    asks = sys.stdin.isatty() and sys.stderr.isatty()
    if not engine and not asks:
        fail("--engine: name at least one engine, as in --engine http://127.0.0.1:8000", EXIT_USAGE)
    urls = engine or _prompt_for_engines()
    check_engine_urls(urls)
    check_api_key_env(api_key_env)
    tenants = tenant or []
    check_tenants(tenants)
    answers = _ask(urls, api_key_env)
    if asks and api_key_env is None and any(answer.wants_key for answer in answers):
        api_key_env = _prompt_for_variable()
        check_key_of(api_key_env)
        answers = _ask(urls, api_key_env)
    found = plan(answers, model or [])
    _check_access(found, api_key_env, config)
    if redis is None:
        redis = _prompt("Redis", DEFAULT_REDIS) if asks else DEFAULT_REDIS
    _check_redis(redis)
    _report(found, api_key_env)
    if not found.models and not found.unknown:
        fail(f"there is no model for a configuration, so {config} is not written")
    keys = _make_keys(tenants, with_admin=admin_key)
    text = configuration_text(
        found, redis_url=redis, api_key_variable=api_key_env, port=port, keys=_hashes(tenants, keys)
    )
    _write(config, text, keys, force=force)
    print_err(f"wrote {config}; next: `roundhouse check`, then `roundhouse serve`")
    for variable in without_passwords(redis)[1]:
        print_err(f"roundhouse: the file has ${{{variable}}} in place of the password; set this environment variable")


def _make_keys(tenants: Sequence[str], *, with_admin: bool) -> dict[str, str]:
    """New keys, by what they are printed with."""
    owners = [*(f"tenant {name}" for name in tenants), *["admin"] * with_admin]
    return {owner: new_key() for owner in owners}


def _hashes(tenants: Sequence[str], keys: Mapping[str, str]) -> FirstKeys:
    admin = keys.get("admin")
    return FirstKeys(
        {name: hash_key(keys[f"tenant {name}"].encode()) for name in tenants},
        hash_key(admin.encode()) if admin is not None else None,
    )


def _ask(urls: list[str], api_key_env: str | None) -> list[Answer]:
    key = os.environ.get(api_key_env or "")
    from router.discovery.ask import ask_engines

    return asyncio.run(ask_engines(urls, {"authorization": f"Bearer {key}"} if key else {}))


def _check_access(found: Plan, api_key_env: str | None, config: Path) -> None:
    """Ends the command if no model is known since the engines refuse the key: a file without models is of no use."""
    refused = [answer for answer in found.unknown if answer.wants_key]
    if found.models or not refused:
        return
    for answer in refused:
        print_err(f"roundhouse: the engine at {answer.url}: {answer.problem}")
    if api_key_env is None:
        remedy = f"name the environment variable with the engines' key: --api-key-env {_DEFAULT_KEY_VARIABLE}"
    elif os.environ.get(api_key_env):
        remedy = f"correct the key in the environment variable {api_key_env}"
    else:
        remedy = f"set the environment variable {api_key_env}, which is not set"
    fail(f"{config} is not written; {remedy}")


def _report(found: Plan, api_key_env: str | None) -> None:
    for known in found.models:
        places = ", ".join(url for engine in known.engines for url in engine.urls)
        kind = known.engines[0].kind
        print_err(f"{known.name}: {known.engines[0].served_model} at {places}" + (f" ({kind})" if kind else ""))
    for note in found.notes:
        print_err(f"roundhouse: {note}")
    for answer in found.unknown:
        print_err(f"roundhouse: the engine at {answer.url}: {answer.problem}; complete the file where it says so")
    if api_key_env is None and any(answer.wants_key for answer in found.unknown):
        print_err(f"roundhouse: name the variable with the engines' key: --api-key-env {_DEFAULT_KEY_VARIABLE}")
    if api_key_env is not None and not os.environ.get(api_key_env):
        print_err(f"roundhouse: the environment variable {api_key_env} is not set; the router needs it to start")


def _check_redis(url: str) -> None:
    if url == EMBEDDED:
        print_err('roundhouse: url = "embedded" is the Redis that `roundhouse up` starts; `serve` starts none')
        return
    from router.shared.connection.redis import ask_server

    for problem in find_url_problems(url):
        fail(f"--redis: {problem}", EXIT_USAGE)
    report = asyncio.run(ask_server(url, timeout=_REDIS_TIMEOUT))
    if report.problem is not None:
        address = parse_redis_url(url).public_url
        print_err(f"roundhouse: Redis at {address} {report.problem}; until it does, nothing is cached")


def _write(config: Path, text: str, keys: Mapping[str, str], *, force: bool) -> None:
    """Prints the keys, then writes the file: it has their hashes only, so keys that are not printed would be lost."""
    is_new = not config.exists()
    try:
        # Exclusively: a file that another process has made since is not overwritten either.
        config.open("a" if force else "x").close()
        if keys and (problem := output_problem(lambda: _print_keys(keys))) is not None:
            if is_new:
                config.unlink()
            fail(f"{problem}: the keys are not shown, so {config} is not written")
        config.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{config}: {error.strerror}")
    if keys:
        print_err("The file has the keys' hashes only: keep the keys now, they are stored nowhere.")


def _print_keys(keys: Mapping[str, str]) -> None:
    for owner, key in keys.items():
        typer.echo(f"{owner}: {key}")


def _prompt_for_engines() -> list[str]:
    urls: list[str] = []
    while True:
        default = "" if urls else _DEFAULT_ENGINE
        url = _prompt("Another engine (Enter for none)" if urls else "URL of an engine", default)
        if not url:
            return urls
        if not is_engine_url(url) or base_url(url) in map(base_url, urls):
            print_err("expected another URL such as http://127.0.0.1:8001, without a user and password")
        else:
            urls.append(url)


def _prompt_for_variable() -> str:
    while True:
        name = _prompt("The engine wants an API key. Name of the environment variable with it", _DEFAULT_KEY_VARIABLE)
        if is_variable(name):
            return name
        print_err("expected the name of a variable, not the key")


def _prompt(question: str, default: str) -> str:
    """Asks at the terminal; Enter is the default. typer.prompt would write to standard output."""
    typer.echo(f"{question}{f' [{default}]' if default else ''}: ", err=True, nl=False)
    line = sys.stdin.readline()
    if not line:  # Ctrl-D
        typer.echo("", err=True)
        raise typer.Abort
    return line.strip() or default
