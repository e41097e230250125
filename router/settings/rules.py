"""Rules between well-formed settings: they must not contradict each other, or refer to something undefined."""

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import asdict

from router.core.batches.hours import parse_hours
from router.core.cache.redis_keys import RESERVED_TENANT_NAMES
from router.core.types import AUTO
from router.net.redis import url as redis_address
from router.settings.access_rules import broken_access
from router.settings.addresses import is_engine_url, is_http_url
from router.settings.engine_rules.gpus import broken_gpus
from router.settings.engine_rules.kv_events import broken_kv_events
from router.settings.engine_rules.launch import broken_launch
from router.settings.engine_rules.shares import broken_shares
from router.settings.mistakes import Mistake, Place, hint, written
from router.settings.origin_rules import broken_origins
from router.settings.tables import (
    EMBEDDED,
    AuthSettings,
    BatchSettings,
    BreakerSettings,
    CacheSettings,
    EngineSettings,
    ModelSettings,
    RouterSettings,
    Settings,
    TenantSettings,
    TimeoutSettings,
    TracingSettings,
    WatchdogSettings,
    is_url,
)
from router.settings.tenant_rules import broken_tenant

_TOO_SHORT: Final = "is too short; the time to live of an entry is at least 1s"
_NOTHING: Final = "must be greater than 0"
_LOCAL_SCHEMES: Final = ("file", "local")
_NO_ADDRESS: Final = (
    "is not a URL such as http://127.0.0.1:8001; use http://, https:// or unix:///PATH, and no user, password or query"
)
_NO_COLLECTOR: Final = (
    "is not a URL such as http://127.0.0.1:4318; use http:// or https:// and no user or password, see tracing.headers"
)
_MIN_WATCH_INTERVAL: Final = 1.0  # seconds; each reading is a request to the engine
_MIN_RESTART_AFTER: Final = 3600.0  # seconds
_MIN_FILE_TTL: Final = 3600.0  # seconds; OpenAI's `expires_after` has the same minimum
_ALL_MODELS: Final[Place] = ("model", None, "name")


def broken(settings: Settings) -> Iterator[Mistake]:
    """The violations. Some may be due to settings that could not be read: see Mistake.reads."""
    yield from _router(settings.router)
    yield from _default_model(settings.router.default_model, settings.model)
    yield from _cache(settings.cache)
    if settings.responses.max_bytes_per_tenant < settings.responses.max_size:
        one: Place = ("responses", "max_size")
        yield Mistake(("responses", "max_bytes_per_tenant"), "must be at least responses.max_size", reads=(one,))
    if not settings.responses.background_timeout:
        yield Mistake(("responses", "background_timeout"), _NOTHING)
    yield from _batch(settings.batch, settings.tenant)
    yield from _auth(settings.auth, settings.tenant)
    yield from _tenants(settings.tenant)
    yield from _models(settings.model, {engine.model for engine in settings.engine})
    yield from _engines(settings.engine, [model.name for model in settings.model])
    yield from broken_shares(settings.engine)
    yield from broken_kv_events(settings.engine, settings.router.workers)
    yield from broken_gpus(settings.gpu, settings.engine)
    yield from _repeated(((("gpu", i, "name"), gpu.name) for i, gpu in enumerate(settings.gpu)))
    yield from _breaker(settings.breaker)
    yield from _timeouts(settings.timeouts)
    yield from _watchdog(settings.watchdog)
    yield from _tracing(settings.tracing)


def _router(router: RouterSettings) -> Iterator[Mistake]:
    if router.receive <= 0:
        yield Mistake(("router", "receive"), _NOTHING)
    if router.send <= 0:
        yield Mistake(("router", "send"), _NOTHING)
    if router.keep_alive <= 0:
        yield Mistake(("router", "keep_alive"), _NOTHING)
    if router.max_bodies < router.max_body:
        at_least: Place = ("router", "max_body")
        yield Mistake(("router", "max_bodies"), "must be at least router.max_body", reads=(at_least,))
    yield from broken_origins(("router", "allowed_origins"), router.allowed_origins)


def _default_model(name: str | None, models: list[ModelSettings]) -> Iterator[Mistake]:
    place: Place = ("router", "default_model")
    if name == AUTO and not any(model.auto for model in models):
        yield Mistake(place, "has no model; set auto of a [[model]]", reads=(("model", None, "auto"),))
    elif name not in (None, AUTO, *(each for model in models for each in (model.name, *model.aliases))):
        reads: tuple[Place, ...] = (_ALL_MODELS, ("model", None, "aliases"))
        yield Mistake(place, _no_model(str(name), [model.name for model in models]), reads=reads)


def _cache(cache: CacheSettings) -> Iterator[Mistake]:
    if cache.url != EMBEDDED:
        for problem in redis_address.find_url_problems(cache.url):
            yield Mistake(("cache", "url"), problem, of_value=False)
    if cache.ttl < 1:
        yield Mistake(("cache", "ttl"), _TOO_SHORT)
    if cache.timeout <= 0:
        yield Mistake(("cache", "timeout"), _NOTHING)
    if cache.retry <= 0:
        yield Mistake(("cache", "retry"), _NOTHING)
    if not cache.context_open:
        yield Mistake(("cache", "context_open"), "must not be empty")
    if not cache.context_close:
        yield Mistake(("cache", "context_close"), "must not be empty")


def _batch(batch: BatchSettings, tenants: list[TenantSettings]) -> Iterator[Mistake]:
    if batch.max_file <= 0:
        yield Mistake(("batch", "max_file"), _NOTHING)
    if 0 < batch.file_ttl < _MIN_FILE_TTL:
        yield Mistake(("batch", "file_ttl"), f"is too short; the minimum is {_MIN_FILE_TTL / 3600:g}h, or 0 for ever")
    if batch.hours and parse_hours(batch.hours) is None:
        yield Mistake(("batch", "hours"), "must be two times of the day, such as 22:00-06:00")
    if "\0" in batch.folder:
        yield Mistake(("batch", "folder"), "is no path: it has a null character", of_value=False)
    if is_url(batch.folder):
        parts = urlsplit(batch.folder)
        if "@" in parts.netloc:
            message = "has credentials; the client of the store finds them in the environment, see docs/batches.md"
            yield Mistake(("batch", "folder"), message, of_value=False)
        elif parts.scheme in _LOCAL_SCHEMES or not parts.netloc:
            yield Mistake(("batch", "folder"), "must be a path, or a URL such as s3://bucket/folder")
    for index, tenant in enumerate(tenants):
        # Else the tenant's files would be in the folder of all, or above it.
        if batch.folder and tenant.name in (".", ".."):
            message = "cannot be a tenant's name with batch.folder, where each tenant has a folder of its name"
            yield Mistake(("tenant", index, "name"), message, reads=(("batch", "folder"),))


def _auth(auth: AuthSettings, tenants: list[TenantSettings]) -> Iterator[Mistake]:
    if auth.mode in ("keys", "header") and not tenants:  # the keys of a tenant without any may be in Redis
        yield Mistake(("auth", "mode"), "needs at least one [[tenant]]", reads=(("tenant",),))
    if auth.mode == "open":
        with_keys = next((index for index, tenant in enumerate(tenants) if tenant.keys), None)
        if with_keys is not None:
            keys: Place = ("tenant", with_keys, "keys")
            message = f"cannot be combined with {written(keys)}, which nobody would need; remove one of them"
            yield Mistake(("auth", "mode"), message, reads=(keys,))


def _tenants(tenants: list[TenantSettings]) -> Iterator[Mistake]:
    for index, tenant in enumerate(tenants):
        if tenant.name in RESERVED_TENANT_NAMES:
            message = "is reserved in Redis keys and cannot be a tenant's name"
            yield Mistake(("tenant", index, "name"), message)
        if tenant.ttl is not None and tenant.ttl < 1:
            yield Mistake(("tenant", index, "ttl"), _TOO_SHORT)
        yield from broken_tenant(("tenant", index), tenant)
    yield from _repeated(((("tenant", i, "name"), tenant.name) for i, tenant in enumerate(tenants)))
    keys: Iterator[tuple[Place, str]] = (
        (("tenant", i, "keys", k), key) for i, tenant in enumerate(tenants) for k, key in enumerate(tenant.keys)
    )
    yield from _repeated(keys)


def _models(models: list[ModelSettings], served: set[str]) -> Iterator[Mistake]:
    names = [model.name for model in models]
    all_names: list[tuple[Place, str]] = []
    for index, model in enumerate(models):
        place: Place = ("model", index)
        own: list[tuple[Place, str]] = [((*place, "name"), model.name)]
        own += [((*place, "aliases", k), alias) for k, alias in enumerate(model.aliases)]
        for where, name in own:
            if name == AUTO:
                yield Mistake(where, "is reserved for the choice by task and cannot be a model's name")
        all_names += own
        if model.fallback == model.name:
            message = "is the model itself; a model cannot be its own fallback"
            yield Mistake((*place, "fallback"), message, reads=((*place, "name"),))
        elif model.fallback is not None and model.fallback not in names:
            yield Mistake((*place, "fallback"), _no_model(model.fallback, names), reads=(_ALL_MODELS,))
        if model.wake is not None and model.wake <= 0:
            yield Mistake((*place, "wake"), _NOTHING)
        if model.name not in served and model.wake is None:  # else engines of it may announce themselves
            message = "has no engine; add an [[engine]] with this model"
            yield Mistake((*place, "name"), message, reads=(("engine", None, "model"),))
    yield from _repeated(all_names)
    if not models:
        yield Mistake(("model",), "is missing; add at least one [[model]]")


def _engines(engines: list[EngineSettings], models: list[str]) -> Iterator[Mistake]:
    for index, engine in enumerate(engines):
        place: Place = ("engine", index)
        url: Place = (*place, "url")
        urls: Place = (*place, "urls")
        if engine.model not in models:
            yield Mistake((*place, "model"), _no_model(engine.model, models), reads=(_ALL_MODELS,))
        if engine.launch is not None and engine.launch.placement == "ray":
            yield from _ray_address(place, engine)
        elif engine.url is None and not engine.urls:
            yield Mistake(url, "is missing; set it, or urls for several replicas", reads=(urls,))
        if engine.url is not None and engine.urls:
            yield Mistake(url, "cannot be combined with urls; set only one of them", reads=(urls,))
        replicas: list[tuple[Place, str]] = [((*urls, k), replica) for k, replica in enumerate(engine.urls)]
        for where, address in [(url, engine.url)] if engine.url is not None else replicas:
            if not is_engine_url(address):
                yield Mistake(where, _NO_ADDRESS)
        yield from broken_access(place, engine)
        if engine.launch is not None and engine.launch.placement == "local" and len(engine.addresses) != 1:
            message = "needs an engine with one url; add an [[engine]] for each"
            wanting = "launch" if engine.profile is None else "profile"
            yield Mistake((*place, wanting), message, reads=(url, urls))
        if engine.launch is not None and engine.data_parallel > 1:
            message = "cannot be combined with [engine.launch]: roundhouse starts no engine with several ranks"
            yield Mistake((*place, "data_parallel"), message, reads=((*place, "launch"),))
        if engine.launch is not None:
            yield from broken_launch((*place, "launch"), engine.launch, engine.max_model_len)
    yield from _repeated(((("engine", i, "name"), engine.name) for i, engine in enumerate(engines)))


def _ray_address(place: Place, engine: EngineSettings) -> Iterator[Mistake]:
    """`roundhouse up` announces its URL, which is another one after each start."""
    reads: tuple[Place, ...] = ((*place, "launch", "placement"),)
    for name, is_set in (("url", engine.url is not None), ("urls", bool(engine.urls))):
        if is_set:
            message = (
                'cannot be combined with launch.placement = "ray", which decides where the engine serves; remove it'
            )
            yield Mistake((*place, name), message, of_value=False, reads=reads)


def _breaker(breaker: BreakerSettings) -> Iterator[Mistake]:
    if breaker.close_below >= breaker.open_above:
        above: Place = ("breaker", "open_above")
        yield Mistake(("breaker", "close_below"), "must be less than breaker.open_above", reads=(above,))
    if breaker.cooldown <= 0:
        yield Mistake(("breaker", "cooldown"), _NOTHING)


def _timeouts(timeouts: TimeoutSettings) -> Iterator[Mistake]:
    for name, seconds in asdict(timeouts).items():
        if seconds <= 0 and name != "heartbeat":
            yield Mistake(("timeouts", name), _NOTHING)


def _watchdog(watchdog: WatchdogSettings) -> Iterator[Mistake]:
    if watchdog.interval < _MIN_WATCH_INTERVAL:
        yield Mistake(("watchdog", "interval"), f"is too short; the minimum is {_MIN_WATCH_INTERVAL:g}s")
    if watchdog.restart_after is not None and watchdog.restart_after < _MIN_RESTART_AFTER:
        yield Mistake(("watchdog", "restart_after"), f"is too short; the minimum is {_MIN_RESTART_AFTER / 3600:g}h")


def _tracing(tracing: TracingSettings) -> Iterator[Mistake]:
    if tracing.endpoint and not is_http_url(tracing.endpoint):
        yield Mistake(("tracing", "endpoint"), _NO_COLLECTOR)
    for name, value in tracing.headers.items():
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", name):
            yield Mistake(("tracing", "headers", name), "is no name of an HTTP header", of_value=False)
        elif not re.fullmatch(r"[!-~]([ -~]{0,4094}[!-~])?", value):
            message = "must be printable ASCII text without spaces at its ends"
            yield Mistake(("tracing", "headers", name), message, of_value=False)


def _repeated(values: Iterable[tuple[Place, str]]) -> Iterator[Mistake]:
    first: dict[str, Place] = {}
    for place, value in values:
        if value in first:
            yield Mistake(place, f"is already used by {written(first[value])}; choose another")
        elif value:  # empty: could not be read, or is reported already
            first[value] = place


def _no_model(name: str, models: list[str]) -> str:
    """The message for a reference to an unknown model. Only names count: aliases are for clients."""
    known = [
        model for model in models if re.fullmatch("[a-z0-9._-]{1,64}", model)
    ]  # invalid names are reported already
    if not known:
        return "is not a model; add a [[model]] with this name"
    similar = hint(name, known)
    return (
        f"is not a model; did you mean {similar}?" if similar else f"is not a model; the models are {', '.join(known)}"
    )
