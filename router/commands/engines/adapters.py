"""`roundhouse engines adapters`: the LoRA adapters of the engines; load and unload one at all engines of a model.

The commands ask the engines directly, and tell the routers through Redis.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from router.commands.console import (
    EXIT_USAGE,
    ConfigOption,
    JsonLinesOption,
    JsonOption,
    fail,
    load_settings,
    print_err,
    write_json,
    write_table,
)
from router.commands.engines.engine_access import probe_engines, with_announced
from router.commands.redis import record_change, with_redis
from router.commands.suggestions import command_group
from router.commands.termination import cancelled_by_signals
from router.core.plural import pluralize
from router.errors import ApiError
from router.settings import DEFAULT_PATH, Settings

if TYPE_CHECKING:  # imported by the commands that need them, since they would slow all others down
    from router.store.admin.scan import RedisClient
    from router.upstream.adapter_changes import AdapterRequest, EngineChange

AdapterArgument = Annotated[str, typer.Argument(help="The adapter's id, by which clients request it.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="The base model; needed if there are several models.")
]

app = command_group("List the engines' LoRA adapters; load and unload one.")


class AdapterRow(msgspec.Struct, frozen=True):
    """An adapter at an engine. `name`: in cache keys, log lines and metrics; `path`: where it was loaded from."""

    adapter: str
    model: str
    engine: str
    name: str
    path: str


class ChangeResult(msgspec.Struct, frozen=True):
    """`purged`: entries of an adapter that was replaced in place."""

    adapter: str
    model: str
    engines: "Sequence[EngineChange]"
    everywhere: bool
    purged: int


@app.command(name="list")
def list_adapters(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonLinesOption = False) -> None:
    """List the adapters that the engines have now."""
    from router.upstream.adapters import adapter_name

    settings, _ = with_announced(load_settings(config), config)
    rows = [
        AdapterRow(each.id, engine.model, engine.name, adapter_name(engine.model, each.id), each.root)
        for engine in asyncio.run(probe_engines(settings, lambda _: True))
        for each in engine.adapters
    ]
    rows.sort(key=lambda row: (row.adapter, row.model, row.engine))
    if as_json:
        for row in rows:
            write_json(row)
    else:
        titles = ("adapter", "model", "engine", "name in keys", "path")
        write_table([titles, *((row.adapter, row.model, row.engine, row.name, row.path) for row in rows)])


@app.command()
def load(
    adapter: AdapterArgument,
    path: Annotated[str, typer.Argument(help="The adapter's folder on the engines' machines, or its repository.")],
    config: ConfigOption = Path(DEFAULT_PATH),
    model: ModelOption = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace a loaded adapter of this id, and purge its cache entries.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Load an adapter into all engines of a model; engines that have it already are left alone."""
    from router.upstream.adapter_changes import AdapterRequest

    request = AdapterRequest(lora_name=adapter, lora_path=path, load_inplace=in_place, model=model)
    _change(config, request, as_json=as_json, loads=True)


@app.command()
def unload(
    adapter: AdapterArgument,
    config: ConfigOption = Path(DEFAULT_PATH),
    model: ModelOption = None,
    as_json: JsonOption = False,
) -> None:
    """Unload an adapter from all engines of a model."""
    from router.upstream.adapter_changes import AdapterRequest

    _change(config, AdapterRequest(lora_name=adapter, model=model), as_json=as_json, loads=False)


def _change(config: Path, request: "AdapterRequest", *, as_json: bool, loads: bool) -> None:
    from router.upstream.adapter_changes import change_error, check_adapter_request

    settings, _ = with_announced(load_settings(config), config)
    try:
        check_adapter_request(request, loads=loads)
    except ApiError as error:
        fail(error.message, EXIT_USAGE)
    model = _base_model(settings, config, request.model)
    result = with_redis(settings, config, lambda redis: _change_at_engines(settings, model, request, redis, loads))
    if as_json:
        write_json(result)
    else:
        for change in result.engines:
            typer.echo(f"{change.engine}: {change.state}" + (f": {change.message}" if change.message else ""))
        if result.purged:
            print_err(f"purged {pluralize(result.purged, 'entry', 'entries')}")
    error_ = change_error(request.lora_name, result.engines)
    if error_ is not None:
        fail(error_.message)


async def _change_at_engines(
    settings: Settings, model: str, request: "AdapterRequest", redis: "RedisClient", loads: bool
) -> ChangeResult:
    from router.flow.replicas.adapter_publication import publish_change
    from router.net.client.transport import HTTPTransport
    from router.shared.audit.recorded import recorded
    from router.upstream.adapter_changes import audited_changes, audited_stop, load_adapter, unload_adapter
    from router.upstream.client import EngineClient
    from router.upstream.configured_catalog import build_catalog
    from router.upstream.model_lists import ModelListReader

    catalog = build_catalog(settings)
    client = EngineClient(HTTPTransport(), connect_timeout=settings.timeouts.connect)
    try:
        change = load_adapter if loads else unload_adapter
        with cancelled_by_signals():
            changes = await recorded(
                change(client, ModelListReader(catalog, client), catalog.engines_for(model), request),
                partial(record_change, settings),
                lambda done: audited_changes(request, model, done, loads=loads),
                lambda error: [audited_stop(request, model, error, loads=loads)],
            )
    finally:
        await client.aclose()
    everywhere, purged = await publish_change(redis, model, request, changes)
    return ChangeResult(request.lora_name, model, changes, everywhere, purged)


def _base_model(settings: Settings, config: Path, name: str | None) -> str:
    if name is None and len(settings.model) == 1:
        return settings.model[0].name
    found = next((model.name for model in settings.model if name in (model.name, *model.aliases)), None)
    if found is None:
        names = ", ".join(model.name for model in settings.model)
        fail(f"{config}: --model must be the adapter's base model, one of {names}", EXIT_USAGE)
    return found
