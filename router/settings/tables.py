"""The configuration: one TOML file, read once, with every mistake told by its place.

Everything has a default but the models and engines. Strings may hold `${VAR}` and `${VAR:-default}`, which come from
the environment. What the file says and this version does not do yet is named by `Settings.not_yet`.
"""

import hashlib
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from router.addresses import is_http
from router.core.cache.key import Markers
from router.core.cache.policy import Remote, Store
from router.core.cache.redis_keys import RESERVED
from router.core.types import AUTO, DEFAULT_TENANT, EngineTask, Task
from router.net.redis import url as redis_address
from router.units import Bytes, Seconds, from_text

DEFAULT_PATH: Final = "roundhouse.toml"
EMBEDDED: Final = "embedded"

_MAX_SOCKET_PATH: Final = 100  # bytes; the kernel's limit is 108 on Linux and 104 elsewhere
_TOO_SHORT: Final = "every entry needs a time to live of at least 1s"
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

Name = Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}\Z")]
"""What may stand in a key: so `redis-cli --scan --pattern` means what it says."""

KeyHash = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=1, le=10**12)]  # Redis' scripts count in doubles
Share = Annotated[float, Meta(gt=0, le=1)]


class ConfigurationError(Exception):
    """The configuration cannot be used; the message is one line that names the place."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename=None):
    """A table that refuses what it does not know, so that a typing error cannot pass for a setting."""


class Router(Strict, frozen=True):
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8080
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    log_format: Literal["text", "json"] = "text"
    max_body: Bytes = Bytes(4 << 20)
    max_bodies: Bytes = Bytes(256 << 20)
    explore: Annotated[float, Meta(ge=0, le=1)] = 0.02
    receive: Seconds = Seconds(30)
    send: Seconds = Seconds(60)
    drain: Seconds = Seconds(5)
    grace: Seconds = Seconds(30)
    state: str = ".roundhouse"


class Cache(Strict, frozen=True):
    """`timeout` bounds what a slow Redis may cost a request; `retry` is how often one that is down is asked again."""

    url: str = EMBEDDED
    ttl: Seconds = Seconds(86400)
    stale_if_error: Seconds = Seconds(3600)
    max_entry: Bytes = Bytes(1 << 20)
    local: Bytes = Bytes(64 << 20)
    store: Store = "all"
    remote_content: Remote = "uncacheable"
    on_abandon: Literal["cancel", "finish"] = "cancel"
    abandon: Seconds = Seconds(2)
    timeout: Seconds = Seconds(0.05)
    retry: Seconds = Seconds(0.5)
    context_open: str = Markers().open
    context_close: str = Markers().close


class Auth(Strict, frozen=True):
    mode: Literal["open", "keys", "header"] = "open"
    admin_keys: list[KeyHash] = []


class Tenant(Strict, frozen=True):
    """For the limits, see core.limits; for `group`, see core.cache_salt."""

    name: Name
    keys: list[KeyHash] = []
    group: Name | None = None
    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    concurrent_requests: Amount | None = None
    ttl: Seconds | None = None
    store: Store | None = None


class Model(Strict, frozen=True):
    name: Name
    aliases: list[str] = []
    revision: str = ""
    auto: list[Task] = []
    fallback: str | None = None


class Launch(Strict, frozen=True):
    """How roundhouse starts the engine itself; `args` and `env` go to vLLM as they stand."""

    target: str
    draft: str | None = None
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] = 4
    heterogeneous_vocab: bool | None = None
    gpus: list[Annotated[int, Meta(ge=0)]] = []
    args: list[str] = []
    env: dict[str, str] = {}


class Engine(Strict, frozen=True):
    name: Name
    model: str
    task: EngineTask = "any"
    url: str | None = None
    urls: list[str] = []
    served_model: str | None = None
    max_model_len: Count | None = None
    max_in_flight: Count | None = None
    launch: Launch | None = None

    @property
    def addresses(self) -> list[str]:
        """Where the engine and its replicas answer, without a slash at the end."""
        return [url.rstrip("/") for url in ([self.url] if self.url is not None else self.urls)]


class Breaker(Strict, frozen=True):
    open_above: Share = 0.88
    close_below: Share = 0.79
    failures: Count = 5
    cooldown: Seconds = Seconds(10)


class Timeouts(Strict, frozen=True):
    connect: Seconds = Seconds(5)
    first_token: Seconds = Seconds(30)
    between_tokens: Seconds = Seconds(15)
    min_tokens_per_second: Annotated[float, Meta(gt=0)] = 10.0
    queue: Seconds = Seconds(10)


class Settings(Strict, frozen=True):
    """The whole file."""

    router: Router = Router()
    cache: Cache = Cache()
    auth: Auth = Auth()
    tenant: list[Tenant] = []
    model: list[Model] = []
    engine: list[Engine] = []
    breaker: Breaker = Breaker()
    timeouts: Timeouts = Timeouts()

    @property
    def redis_socket(self) -> Path:
        """Where the private Redis of `url = "embedded"` listens: in the state folder, if its path is not too long."""
        path = Path(self.router.state).resolve() / "redis.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"roundhouse-{os.getuid()}-{digest}.sock"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.redis_socket}" if self.cache.url == EMBEDDED else self.cache.url

    def not_yet(self) -> list[str]:
        """What the file asks for and this version does not do, a line each."""
        plans: list[tuple[bool, str, str]] = []  # none at present
        return [f"{place}: this version has no {what} yet; the setting is read and has no effect"
                for asked, place, what in plans if asked]  # fmt: skip


def load(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads a configuration file. Raises ConfigurationError, one line that names the file and the place in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{path}: not UTF-8 text") from None
    try:
        return parse(text, os.environ if environment is None else environment)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def parse(text: str, environment: Mapping[str, str]) -> Settings:
    """Reads a configuration from its text. Raises ConfigurationError, one line that names the place in it."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"not valid TOML: {error}") from None
    filled = _fill(raw, environment, "")
    try:
        settings = msgspec.convert(filled, Settings, dec_hook=from_text)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `")
        path = place.removesuffix("`").removeprefix("$").removeprefix(".")
        raise ConfigurationError(f"{path or 'top level'}: {what[0].lower()}{what[1:]}") from None
    if problems := _problems(settings):
        raise ConfigurationError("; ".join(problems))
    return settings


def _fill(value: Any, environment: Mapping[str, str], place: str) -> Any:
    """Puts the environment's values in the place of `${VAR}` and `${VAR:-default}`."""
    if isinstance(value, dict):
        return {name: _fill(item, environment, f"{place}.{name}".lstrip(".")) for name, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, environment, f"{place}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        # As a shell does it, the default also stands in for what is empty.
        found = environment.get(name) or (environment.get(name) if default is None else default)
        if found is None:
            raise ConfigurationError(f"{place}: the environment has no {name}")
        return found

    return _VARIABLE.sub(replace, value)


def _problems(settings: Settings) -> list[str]:
    """What is well-formed and cannot be meant, each with its place."""
    return [
        *_repeated("tenant", [tenant.name for tenant in settings.tenant]),
        *_repeated("engine", [engine.name for engine in settings.engine]),
        *_repeated("model", [name for model in settings.model for name in (model.name, *model.aliases)]),
        *_model_problems(settings),
        *_engine_problems(settings),
        *_cache_problems(settings.cache),
        *_tenant_problems(settings.tenant),
        *[f"timeouts.{name}: must be more than nothing" for name, s in asdict(settings.timeouts).items() if s <= 0],
        *[f"router.{s}: must be more than nothing" for s in ("receive", "send") if getattr(settings.router, s) <= 0],
        *_router_problems(settings.router),
        *_auth_problems(settings),
        *_breaker_problems(settings.breaker),
    ]


def _repeated(table: str, names: list[str]) -> list[str]:
    return [f"{table}: the name {name!r} is given twice" for name in sorted({n for n in names if names.count(n) > 1})]


def _router_problems(router: Router) -> list[str]:
    if router.max_bodies < router.max_body:
        return ["router.max_bodies: must be at least router.max_body"]
    return []


def _model_problems(settings: Settings) -> list[str]:
    names = [model.name for model in settings.model]
    served = {engine.model for engine in settings.engine}
    problems = []
    for index, model in enumerate(settings.model):
        place = f"model[{index}]"
        if AUTO in (model.name, *model.aliases):
            problems.append(f"{place}.name: {AUTO!r} stands for the choice by task and cannot be a model's name")
        if model.fallback is not None and model.fallback not in names:
            problems.append(f"{place}.fallback: there is no model {model.fallback!r}")
        if model.fallback == model.name:
            problems.append(f"{place}.fallback: a model cannot fall back on itself")
        if model.name not in served:
            problems.append(f"{place}.name: no engine has the model {model.name!r}")
    if not settings.model:
        problems.append("model: there must be at least one [[model]]")
    return problems


def _engine_problems(settings: Settings) -> list[str]:
    problems = []
    for index, engine in enumerate(settings.engine):
        place = f"engine[{index}]"
        if engine.model not in [model.name for model in settings.model]:
            problems.append(f"{place}.model: there is no model {engine.model!r}")
        if (engine.url is None) == (not engine.urls):
            problems.append(f"{place}.url: give either url or urls")
        problems += [
            f"{place}.url: {url.rpartition('@')[2]!r} is not an http:// or https:// address without credentials"
            for url in engine.addresses
            if not is_http(url)
        ]
        if engine.launch is not None and len(engine.addresses) != 1:
            problems.append(f"{place}.launch: an engine that roundhouse starts has one url")
    return problems


def _cache_problems(cache: Cache) -> list[str]:
    problems = []
    if cache.url != EMBEDDED:
        problems += [f"cache.url: {problem}" for problem in redis_address.problems(cache.url)]
    if cache.ttl < 1:
        problems.append(f"cache.ttl: {_TOO_SHORT}")
    if cache.timeout <= 0 or cache.retry <= 0:
        problems.append("cache.timeout, cache.retry: must be more than nothing")
    if not cache.context_open or not cache.context_close:
        problems.append("cache.context_open, cache.context_close: must not be empty")
    return problems


def _tenant_problems(tenants: list[Tenant]) -> list[str]:
    short = [index for index, tenant in enumerate(tenants) if tenant.ttl is not None and tenant.ttl < 1]
    return [f"tenant[{index}].ttl: {_TOO_SHORT}" for index in short]


def _auth_problems(settings: Settings) -> list[str]:
    keys = [key for tenant in settings.tenant for key in tenant.keys]
    problems = [
        f"tenant[{index}].name: {tenant.name!r} stands for something else in Redis and cannot be a tenant's name"
        for index, tenant in enumerate(settings.tenant)
        if tenant.name in RESERVED
    ]
    if len(set(keys)) < len(keys):
        problems.append("tenant: two tenants cannot have the same key")
    if settings.auth.mode == "keys" and not keys:
        problems.append("auth.mode: with keys, at least one [[tenant]] must have a key")
    if settings.auth.mode == "header" and not settings.tenant:
        problems.append("auth.mode: with header, there must be at least one [[tenant]]")
    return problems


def _breaker_problems(breaker: Breaker) -> list[str]:
    problems = []
    if breaker.close_below >= breaker.open_above:
        problems.append("breaker.close_below: must be less than open_above")
    if breaker.cooldown <= 0:
        problems.append("breaker.cooldown: must be more than nothing")
    return problems


def tenants(settings: Settings) -> list[str]:
    """The names that a request can belong to."""
    named = [tenant.name for tenant in settings.tenant]
    return named if settings.auth.mode != "open" or DEFAULT_TENANT in named else [DEFAULT_TENANT, *named]


def groups(settings: Settings) -> dict[str, str | None]:
    """By the name of each tenant that can ask, the group of tenants with which it shares the engines' prefix caches."""
    own = {tenant.name: tenant.group for tenant in settings.tenant}
    asking = [DEFAULT_TENANT] if settings.auth.mode == "open" else tenants(settings)
    return {name: own.get(name) for name in asking}
