"""`roundhouse models`: the models of a configuration, as clients name them."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from router.commands.console import ConfigOption, JsonLinesOption, load_settings, write_json, write_table
from router.commands.engines.engine_access import probe_engines, with_announced
from router.settings import DEFAULT_PATH

if TYPE_CHECKING:  # imported by the command, since it would slow all others down
    from router.upstream.engine import Engine


class ModelRow(msgspec.Struct, frozen=True):
    """`auto`: the tasks for which it is `auto`. `max_model_len`: the longest of its engines; None if unknown."""

    name: str
    aliases: list[str]
    auto: list[str]
    engines: list[str]
    engines_up: int
    max_model_len: int | None


def models(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonLinesOption = False) -> None:
    """List the models: their names for clients, and how many of their engines are up."""
    settings, _ = with_announced(load_settings(config), config)
    engines = asyncio.run(probe_engines(settings, lambda _: True))
    rows = [_row(model.name, model.aliases, list(model.auto), engines) for model in settings.model]
    if as_json:
        for row in rows:
            write_json(row)
        return
    if any(row.auto for row in rows):
        typer.echo("`auto` selects the model by the task of the prompt")
    titles = ("model", "aliases", "auto", "engines up", "context")
    write_table([titles, *map(_cells, rows)])


def _row(name: str, aliases: list[str], auto: list[str], engines: "list[Engine]") -> ModelRow:
    own = [engine for engine in engines if engine.model == name]
    lengths = [engine.max_model_len for engine in own if engine.max_model_len is not None]
    up = sum(engine.up is True for engine in own)
    return ModelRow(name, aliases, auto, [engine.name for engine in own], up, max(lengths, default=None))


def _cells(row: ModelRow) -> tuple[str, ...]:
    context = "?" if row.max_model_len is None else f"{row.max_model_len:,}"
    up = f"{row.engines_up} of {len(row.engines)}"
    return row.name, ", ".join(row.aliases) or "-", ", ".join(row.auto) or "-", up, context
