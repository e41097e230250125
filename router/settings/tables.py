"""The settings: the tables of the configuration, with their defaults.

Everything but the models and engines has a default. `Settings.not_yet` reports settings that this version reads but
does not implement. A type's rule is in its Meta, with a description that continues a value in a message; for types that
may hold secrets, Meta also has the form in which a message may show a value.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from router.core.cache.key import ContextMarkers
from router.core.cache.policy import RemoteContentPolicy, StorePolicy
from router.core.types import DEFAULT_TENANT, EngineTask, Task
from router.settings.profiles import ProfileName
from router.settings.wording import SHOWN_IF
from router.units import Bytes, Seconds

DEFAULT_PATH: Final = "roundhouse.toml"
EMBEDDED: Final = "embedded"

_MAX_SOCKET_PATH: Final = 100  # bytes; the kernel's limit is 108 on Linux and 104 elsewhere

Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=64,
        pattern=r"^[a-z0-9._-]*\Z",
        description="may only have a-z, 0-9, '.', '_' and '-'",
    ),
]
"""What may be part of a Redis key: no character has a meaning in the patterns of `redis-cli --scan`."""

Secret = Annotated[str, Meta(extra={SHOWN_IF: "(?!)"})]
"""A text that may hold a password or a key; no message shows it ("(?!)" matches nothing)."""

KeyHash = Annotated[
    str,
    Meta(
        pattern=r"^sha256:[0-9a-f]{64}\Z",
        description="is no hash; make one with `roundhouse keys hash`",
        extra={SHOWN_IF: "(?!)"},
    ),
]
Address = Annotated[str, Meta(extra={SHOWN_IF: r"([a-z]+://)?[a-z0-9.-]+(:[0-9]{1,5})?/?"})]
"""An engine's URL; with a user, a password, a path or a query, no message shows it."""

NonEmpty = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=1, le=10**12)]  # Redis' scripts calculate in doubles, which are exact up to 2^53
Share = Annotated[float, Meta(gt=0, le=1)]
Speculation = Literal["draft_model", "ngram", "eagle", "eagle3", "none"]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename=None):
    """A table that refuses unknown settings, so that a typing error is not silently ignored."""


class RouterSettings(Strict, frozen=True):
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


class CacheSettings(Strict, frozen=True):
    """`timeout` limits what a slow Redis costs a request; `retry` is the interval of reconnection attempts."""

    url: Secret = EMBEDDED
    ttl: Seconds = Seconds(86400)
    stale_if_error: Seconds = Seconds(3600)
    max_entry: Bytes = Bytes(1 << 20)
    local: Bytes = Bytes(64 << 20)
    store: StorePolicy = "all"
    remote_content: RemoteContentPolicy = "uncacheable"
    on_abandon: Literal["cancel", "finish"] = "cancel"
    abandon: Seconds = Seconds(2)
    timeout: Seconds = Seconds(0.05)
    retry: Seconds = Seconds(0.5)
    context_open: str = ContextMarkers().open
    context_close: str = ContextMarkers().close


class AuthSettings(Strict, frozen=True):
    mode: Literal["open", "keys", "header"] = "open"
    admin_keys: list[KeyHash] = []


class TenantSettings(Strict, frozen=True):
    """The limits: core.quota.rate_limit; `group`: core.endpoints.cache_salt."""

    name: Name
    keys: list[KeyHash] = []
    group: Name | None = None
    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    concurrent_requests: Amount | None = None
    ttl: Seconds | None = None
    store: StorePolicy | None = None


class ModelSettings(Strict, frozen=True):
    name: Name
    aliases: list[str] = []
    revision: str = ""
    auto: list[Task] = []
    fallback: str | None = None


class LaunchSettings(Strict, frozen=True):
    """How `roundhouse up` starts the engine; options of vLLM have vLLM's names, and None leaves them to vLLM.

    `args` and `env` are passed to vLLM unchanged.
    """

    target: NonEmpty
    device: Literal["auto", "cpu", "gpu"] = "auto"
    gpus: list[Annotated[int, Meta(ge=0)]] = []
    tensor_parallel_size: Count | None = None
    pipeline_parallel_size: Count = 1
    quantization: Literal["awq", "gptq", "fp8", "compressed-tensors"] | None = None
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] | None = None
    gpu_memory_utilization: Share | None = None
    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    chat_template: NonEmpty | None = None
    lora: dict[str, NonEmpty] = {}
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] | None = None
    speculation: Speculation | None = None
    draft: NonEmpty | None = None
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] = 4
    speculation_max_batch: Count | None = None
    heterogeneous_vocab: bool | None = None
    prompt_lookup_min: Count | None = None
    prompt_lookup_max: Count | None = None
    args: list[Secret] = []
    env: dict[str, Secret] = {}

    @property
    def speculation_method(self) -> str | None:
        """The method of speculative decoding; None for none. A draft is a draft model unless the setting names it."""
        if self.speculation is None:
            return "draft_model" if self.draft is not None else None
        return None if self.speculation == "none" else self.speculation


class EngineSettings(Strict, frozen=True):
    name: Name
    model: str
    profile: ProfileName | None = None
    task: EngineTask = "any"
    url: Address | None = None
    urls: list[Address] = []
    served_model: str | None = None
    max_model_len: Count | None = None
    max_in_flight: Count | None = None
    launch: LaunchSettings | None = None

    @property
    def addresses(self) -> list[str]:
        """The URLs of the engine's replicas, without a slash at the end."""
        return [url.rstrip("/") for url in ([self.url] if self.url is not None else self.urls)]


class BreakerSettings(Strict, frozen=True):
    open_above: Share = 0.88
    close_below: Share = 0.79
    failures: Count = 5
    cooldown: Seconds = Seconds(10)


class TimeoutSettings(Strict, frozen=True):
    connect: Seconds = Seconds(5)
    first_token: Seconds = Seconds(30)
    between_tokens: Seconds = Seconds(15)
    min_tokens_per_second: Annotated[float, Meta(gt=0)] = 10.0
    queue: Seconds = Seconds(10)


class Settings(Strict, frozen=True):
    """The whole file."""

    router: RouterSettings = RouterSettings()
    cache: CacheSettings = CacheSettings()
    auth: AuthSettings = AuthSettings()
    tenant: list[TenantSettings] = []
    model: list[ModelSettings] = []
    engine: list[EngineSettings] = []
    breaker: BreakerSettings = BreakerSettings()
    timeouts: TimeoutSettings = TimeoutSettings()

    @property
    def redis_socket(self) -> Path:
        """The socket of the private Redis of `url = "embedded"`."""
        return self._socket("redis.sock")

    @property
    def control_socket(self) -> Path:
        """The socket at which `roundhouse up` takes requests."""
        return self._socket("up.sock")

    def _socket(self, name: str) -> Path:
        """A socket in the state directory; in the directory for temporary files if the path would be too long."""
        path = Path(self.router.state).resolve() / name
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"roundhouse-{os.getuid()}-{digest}.sock"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.redis_socket}" if self.cache.url == EMBEDDED else self.cache.url

    def not_yet(self) -> list[str]:
        """Settings in use that this version does not implement, a line each."""
        plans: list[tuple[bool, str, str]] = []  # none at present
        return [f"{place}: this version has no {what} yet; the setting is read and has no effect"
                for is_set, place, what in plans if is_set]  # fmt: skip


def tenants(settings: Settings) -> list[str]:
    named = [tenant.name for tenant in settings.tenant]
    return named if settings.auth.mode != "open" or DEFAULT_TENANT in named else [DEFAULT_TENANT, *named]


def groups(settings: Settings) -> dict[str, str | None]:
    """For each tenant that can send requests, the group with which it shares the engines' prefix caches."""
    own = {tenant.name: tenant.group for tenant in settings.tenant}
    active = [DEFAULT_TENANT] if settings.auth.mode == "open" else tenants(settings)
    return {name: own.get(name) for name in active}
