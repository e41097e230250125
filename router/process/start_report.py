"""What `roundhouse serve` logs when it starts and when it is ready."""

import logging
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from router.build_info import build_version, describe_build, is_compiled
from router.core.plural import pluralize
from router.net.redis.url import parse_redis_url
from router.settings import EMBEDDED, Settings, tenants
from router.shared.connection.redis import ServerReport
from router.telemetry.log_output import with_facts

log = logging.getLogger("roundhouse.server")

MAX_NAMES: Final = 8
"""Models, and engines of a model, that the line about them names."""


NO_EMBEDDED_REDIS: Final = (
    'cache.url = "embedded" is the Redis of `roundhouse up`: `serve` starts none, and serves without a cache until one '
    'is there. For another Redis, set cache.url or --redis, as in "redis://127.0.0.1:6379"'
)


class EngineCount(NamedTuple):
    """How many engines there are, and how many of them are up. `refused`: those that refuse the router's key.

    `closed`: why the router refuses every request; empty if it does not.
    """

    up: int
    total: int
    refused: tuple[str, ...] = ()
    closed: str = ""


def log_start(settings: Settings, redis: ServerReport) -> None:
    """Three lines: the process; Redis and tenants; models and engines. A fourth if nothing starts the Redis."""
    for message, facts in (
        _process_line(settings),
        _dependencies_line(settings, redis),
        _models_line(settings),
    ):
        log.info("%s", message, extra=with_facts(facts))
    if settings.cache.url == EMBEDDED and redis.problem is not None:
        log.warning("%s", NO_EMBEDDED_REDIS)


def log_ready(settings: Settings, engines: EngineCount) -> None:
    url = address(settings)
    if engines.closed:
        message = f"not ready: Roundhouse listens on {url}, but refuses every request: {engines.closed}"
        log.error("%s", message, extra=with_facts({"event": "not-ready", "address": url}))
        return
    message = f"ready: Roundhouse serves on {url} (OpenAI's API under {url}/v1); "
    facts = {"event": "ready", "address": url, "engines": engines.total, "engines_up": engines.up}
    if engines.refused:
        names = ", ".join(_shorten(engines.refused))
        log.warning("the router's key is refused by %s: see api_key of [[engine]]", names)
    if engines.up:
        verb = "is" if engines.total == 1 else "are"
        total = pluralize(engines.total, "engine")
        log.info("%s%d of %s %s up", message, engines.up, total, verb, extra=with_facts(facts))
    elif settings.gpu or (settings.model and all(model.wake is not None for model in settings.model)):
        log.info("%sno engine is up, and requests wait for one to start", message, extra=with_facts(facts))
    else:
        log.warning("%sno engine is up, so only hits are answered", message, extra=with_facts(facts))


def address(settings: Settings) -> str:
    host = settings.router.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.router.port}"


def _process_line(settings: Settings) -> tuple[str, dict[str, Any]]:
    workers, url = settings.router.workers, address(settings)
    message = f"Roundhouse {describe_build()} starts on {url}: {pluralize(workers, 'worker')}, pid {os.getpid()}"
    return message, {
        "event": "start", "version": build_version(), "compiled": is_compiled(), "address": url, "workers": workers,
        "pid": os.getpid(),
    }  # fmt: skip


def _dependencies_line(settings: Settings, redis: ServerReport) -> tuple[str, dict[str, Any]]:
    url = parse_redis_url(settings.redis_url).public_url
    if redis.problem is not None:
        state = f"{redis.problem}; until it does, nothing is cached"
    else:
        state = f"version {redis.version or 'unknown'}"
        state += f", {redis.primaries} primaries" if redis.primaries > 1 else ""
    auth, count = settings.auth, len(tenants(settings))
    admin = f"{pluralize(len(auth.admin_keys), 'admin key')}" if auth.admin_keys else "no admin key"
    message = f"Redis at {url}: {state}. Authentication: {settings.auth_mode}, {pluralize(count, 'tenant')}, {admin}"
    return message, {
        "redis": url, "redis_version": redis.version, "redis_up": redis.problem is None, "auth": settings.auth_mode,
        "tenants": count, "admin_keys": len(auth.admin_keys),
    }  # fmt: skip


def _models_line(settings: Settings) -> tuple[str, dict[str, Any]]:
    engines = {model.name: [e.name for e in settings.engine if e.model == model.name] for model in settings.model}
    models = _shorten(
        f"{name} ({', '.join(_shorten(names)) or 'engines announced in Redis'})" for name, names in engines.items()
    )
    total = sum(map(len, engines.values()))
    message = f"{pluralize(len(engines), 'model')}, {pluralize(total, 'engine')}: {', '.join(models)}"
    return message, {"models": engines}


def _shorten(names: Iterable[str]) -> Iterator[str]:
    remaining = iter(names)
    yield from islice(remaining, MAX_NAMES)
    if more := sum(1 for _ in remaining):
        yield f"and {more} more"
