"""`roundhouse serve`: reads the options, and is replaced by the process that serves."""

import os
from pathlib import Path
from typing import Annotated

import typer

from router.commands.console import EXIT_USAGE, ConfigOption, fail
from router.commands.first_options import (
    ApiKeyEnvOption,
    EngineUrlOption,
    ServedModelOption,
    check_api_key_env,
    check_engine_urls,
)
from router.settings import DEFAULT_PATH
from router.settings.serve_options import ServeOptions, exec_serve


def serve(
    context: typer.Context,
    config: ConfigOption = Path(DEFAULT_PATH),
    engine: EngineUrlOption = None,
    redis: Annotated[
        str | None,
        typer.Option(help="URL of Redis, in place of cache.url. With --engine, by default redis://127.0.0.1:6379."),
    ] = None,
    model: ServedModelOption = None,
    api_key_env: ApiKeyEnvOption = None,
    wait: Annotated[
        float, typer.Option(min=0, max=86400, help="With --engine: seconds that the engines may take to start.")
    ] = 600.0,
    host: Annotated[str | None, typer.Option(help="The address to listen on, in place of router.host.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="In place of router.port.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="In place of router.workers.")] = None,
    no_drain: Annotated[
        bool, typer.Option("--no-drain", help="Stop without waiting for router.drain, if no load balancer is used.")
    ] = False,
) -> None:
    """Run the router alone; its engines and its Redis run elsewhere.

    The models and engines come from a configuration file, or from the engines themselves: `--engine URL`.
    """
    urls = engine or []
    source = context.get_parameter_source("config")
    if urls and source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT"):
        fail("--engine: cannot be combined with --config or ROUNDHOUSE_CONFIG; the file names the engines", EXIT_USAGE)
    if not urls and (model or api_key_env is not None):
        fail("--model, --api-key-env: only possible with --engine", EXIT_USAGE)
    check_engine_urls(urls)
    check_api_key_env(api_key_env)
    if api_key_env is not None and not os.environ.get(api_key_env):
        fail(f"--api-key-env: the environment variable {api_key_env} is not set", EXIT_USAGE)
    exec_serve(
        ServeOptions(
            config=str(config), engine=urls, model=model or [], api_key_env=api_key_env, wait=wait, redis=redis,
            host=host, port=port, workers=workers, no_drain=no_drain,
        )
    )  # fmt: skip
