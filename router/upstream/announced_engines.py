"""Merges the announced engines into the settings."""

import logging
import re
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from router.settings import EngineSettings, Settings
from router.settings.addresses import base_url, is_engine_url
from router.settings.replicas import replicas
from router.settings.tables import ModelSettings
from router.shared.engines.announcements import AnnouncedEngine, Fleet, ModelRevision

log = logging.getLogger("roundhouse.engines")

_NAME: Final = re.compile(r"[a-z0-9._-]{1,64}")  # as in the configuration


def with_fleet(configured: Settings, fleet: Fleet, warn: Callable[[str], None] = log.warning) -> Settings:
    """The settings with the announced engines; equal to `configured` if these announce nothing else.

    An announced engine takes the place of the configured one with its name. One whose model is not configured is
    ignored, since models, tenants and quotas come from the configuration only; `warn` gets a line about it.
    """
    usable = {name: engine for name, engine in fleet.engines.items() if _is_usable(engine, configured, warn)}
    engines = [_merge(engine, usable.pop(engine.name, None)) for engine in configured.engine]
    engines += [_new_engine(engine) for engine in usable.values()]
    models = [_model(model, fleet.revisions.get(model.name)) for model in configured.model]
    return replace(configured, engine=engines, model=models)


def _is_usable(announced: AnnouncedEngine, configured: Settings, warn: Callable[[str], None]) -> bool:
    same_name = next((engine for engine in configured.engine if engine.name == announced.name), None)
    if _NAME.fullmatch(announced.name) is None or not is_engine_url(announced.url):
        problem = "its name or its URL is invalid"
    elif announced.model not in {model.name for model in configured.model}:
        problem = "its model is not configured"
    elif same_name is not None and (len(replicas(same_name)) > 1 or same_name.model != announced.model):
        problem = "the configured engine of that name has several replicas or another model"
    elif same_name is not None and same_name.request_headers:  # they would be sent to any URL that is in Redis
        problem = "the configured engine of that name has an api_key or headers"
    elif announced.name in _replica_names(configured):
        problem = "a replica of a configured engine has that name"
    else:
        return True
    warn(f"ignored the announced engine {announced.name[:64]!r}: {problem}")
    return False


def _replica_names(configured: Settings) -> set[str]:
    several = [engine for engine in configured.engine if len(replicas(engine)) > 1]
    return {replica.name for engine in several for replica in replicas(engine)}


def _merge(configured: EngineSettings, announced: AnnouncedEngine | None) -> EngineSettings:
    if announced is None:
        return configured
    values = {
        "url": (next(iter(configured.addresses), ""), base_url(announced.url)),
        "served_model": (configured.served_model or configured.model, announced.served_model),
        "task": (configured.task, announced.task),
        "max_model_len": (configured.max_model_len, announced.max_model_len),
        "max_in_flight": (configured.max_in_flight, announced.max_in_flight),
    }
    changed = {name: new for name, (old, new) in values.items() if new != old}
    # Only one of `url` and `urls` may be set.
    return replace(configured, **changed, **({"urls": []} if "url" in changed else {}))


def _new_engine(announced: AnnouncedEngine) -> EngineSettings:
    return EngineSettings(
        name=announced.name, model=announced.model, task=announced.task, url=announced.url,
        served_model=announced.served_model, max_model_len=announced.max_model_len,
        max_in_flight=announced.max_in_flight,
    )  # fmt: skip


def _model(configured: ModelSettings, switched: ModelRevision | None) -> ModelSettings:
    # If the configuration was changed after a switch, the configuration counts.
    if switched is None or switched.configured != configured.revision:
        return configured
    return replace(configured, revision=switched.revision)
