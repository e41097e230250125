"""The settings: the tables of the configuration, with their defaults.

Everything but the models and engines has a default. A type's rule is in its Meta, with a description that continues a
value in a message; for types that may hold secrets, Meta also has the form in which a message may show a value.
"""

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from router.core.cache.key import ContextMarkers
from router.core.cache.policy import CacheUse, RemoteContentPolicy, StorePolicy
from router.core.cache.retention import Retention
from router.core.cache.sample import MAX_SAMPLES
from router.core.quota.priority import MAX_PRIORITY, MIN_PRIORITY
from router.core.types import DEFAULT_TENANT, EngineTask, Task
from router.settings.addresses import base_url
from router.settings.profiles import ProfileName
from router.settings.units import Bytes, Seconds
from router.settings.wording import SHOWN_IF

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
Address = Annotated[str, Meta(extra={SHOWN_IF: r"([a-z]+://)?[a-z0-9.-]+(:[0-9]{1,5})?(/v1)?/?"})]
"""An engine's URL; with a user, a password, another path or a query, no message shows it."""

KvEndpoint = Annotated[
    str,
    Meta(
        pattern=r"^(tcp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]|\*|\{host\}):[0-9]{1,5}|ipc:///[ -~]{1,100})\Z",
        description="is not an endpoint of ZMQ such as tcp://127.0.0.1:5557 or ipc:///run/llama.kv",
    ),
]
"""Where an engine publishes KV events; see router.settings.replicas."""

NonEmpty = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=1, le=10**12)]  # Redis' scripts calculate in doubles, which are exact up to 2^53
Samples = Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]
ModelPattern = Annotated[str, Meta(min_length=1, max_length=256)]
Priority = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
Share = Annotated[float, Meta(gt=0, le=1)]
EngineKind = Literal["vllm", "sglang", "llama.cpp", "ollama", "tgi", "openai"]
AuthMode = Literal["open", "keys", "header"]
Speculation = Literal["draft_model", "ngram", "eagle", "eagle3", "none"]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename=None):
    """A table that refuses unknown settings, so that a typing error is not silently ignored."""


class ServerSettings(Strict, frozen=True):
    """Those of [router] that the listening socket, the worker processes and the server have for their whole life.

    A change of one needs a restart.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 8080
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    log_format: Literal["text", "json"] = "text"
    explore: Annotated[float, Meta(ge=0, le=1)] = 0.02
    receive: Seconds = Seconds(30)
    send: Seconds = Seconds(60)
    keep_alive: Seconds = Seconds(75)
    drain: Seconds = Seconds(5)
    grace: Seconds = Seconds(30)
    state: str = ".roundhouse"
    pid_file: NonEmpty | None = None


class RouterSettings(ServerSettings, frozen=True):
    log_prompts: Annotated[float, Meta(ge=0, le=1)] = 0.0
    log_prompt_chars: Annotated[int, Meta(ge=1, le=100_000)] = 500
    max_body: Bytes = Bytes(4 << 20)
    max_bodies: Bytes = Bytes(256 << 20)
    max_audio: Bytes = Bytes(25 << 20)
    allowed_origins: list[str] = []
    default_model: NonEmpty | None = None
    server_timing: bool | None = None
    websocket: bool = True
    audit_days: Annotated[int, Meta(ge=1, le=3650)] = 90


class CacheSettings(Strict, frozen=True):
    """`timeout` limits what a slow Redis costs a request; `retry` is the interval of reconnection attempts."""

    url: Secret = EMBEDDED
    ttl: Seconds = Seconds(86400)
    stale_if_error: Seconds = Seconds(3600)
    retention: Retention = "ttl"
    max_entry: Bytes = Bytes(1 << 20)
    local: Bytes = Bytes(64 << 20)
    store: StorePolicy = "all"
    samples: Samples = 1
    remote_content: RemoteContentPolicy = "uncacheable"
    on_abandon: Literal["cancel", "finish"] = "cancel"
    abandon: Seconds = Seconds(2)
    timeout: Seconds = Seconds(0.05)
    retry: Seconds = Seconds(0.5)
    recent_prompts: Annotated[int, Meta(ge=0, le=1000)] = 64
    context_open: str = ContextMarkers().open
    context_close: str = ContextMarkers().close


class ResponsesSettings(Strict, frozen=True):
    """What is kept for `previous_response_id`; `ttl` 0: nothing. `max_size`: of one; see router.flow.memory.

    `max_background`, `max_background_per_tenant`: how many a process generates at once with `background: true`.
    """

    ttl: Seconds = Seconds(86400)
    max_per_tenant: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000
    max_bytes_per_tenant: Bytes = Bytes(1 << 30)
    max_size: Bytes = Bytes(1 << 20)
    max_background: Annotated[int, Meta(ge=0, le=100_000)] = 256
    max_background_per_tenant: Annotated[int, Meta(ge=0, le=100_000)] = 64
    background_timeout: Seconds = Seconds(3600)


class BatchSettings(Strict, frozen=True):
    """Files and batches; an empty `folder` turns them off. `max_files`, `max_batches`: of a tenant.

    `max_in_flight`: lines that a process runs at once. No line begins at an engine above `max_kv_usage`, nor outside of
    `hours`, which is empty for all day. `file_ttl` 0: files are kept until they are deleted.
    """

    folder: str = ""
    max_file: Bytes = Bytes(256 << 20)
    max_lines: Annotated[int, Meta(ge=1, le=10_000_000)] = 50_000
    max_files: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    max_batches: Annotated[int, Meta(ge=1, le=10_000)] = 20
    max_in_flight: Annotated[int, Meta(ge=1, le=10_000)] = 8
    max_kv_usage: Share = 0.7
    hours: str = ""
    file_ttl: Seconds = Seconds(30 * 86400)


class AuthSettings(Strict, frozen=True):
    """`mode`: None follows the keys, see Settings.auth_mode. `admin_keys` has the key of `admin_key_file`, too."""

    mode: AuthMode | None = None
    admin_keys: list[KeyHash] = []
    admin_key_file: str | None = None


class TenantSettings(Strict, frozen=True):
    """The limits: core.quota.rate_limit and core.quota.budget; `group`: core.endpoints.requests.cache_salt.

    `kv_transfer`: core.endpoints.requests.engine_fields. `models`: core.quota.model_access. `highest_priority` and
    `priority`: core.quota.priority.
    """

    name: Name
    keys: list[KeyHash] = []
    group: Name | None = None
    requests_per_minute: Amount | None = None
    tokens_per_minute: Amount | None = None
    concurrent_requests: Amount | None = None
    tokens_per_day: Amount | None = None
    tokens_per_month: Amount | None = None
    gpu_seconds_per_day: Amount | None = None
    gpu_seconds_per_month: Amount | None = None
    models: list[ModelPattern] | None = None
    highest_priority: Priority | None = None
    priority: Priority | None = None
    max_ttft: Seconds | None = None
    ttl: Seconds | None = None
    store: StorePolicy | None = None
    samples: Samples | None = None
    cache: CacheUse = "on"
    log_prompts: bool = True
    kv_transfer: bool = False


class ModelSettings(Strict, frozen=True):
    """`wake`: how long a request waits for an engine to start; None is not at all, see router.flow.attempts.waking."""

    name: Name
    aliases: list[str] = []
    revision: str = ""
    auto: list[Task] = []
    fallback: str | None = None
    wake: Seconds | None = None
    resume: bool = True
    default_max_tokens: Count | None = None
    cache: CacheUse = "on"
    samples: Samples | None = None


class LaunchSettings(Strict, frozen=True):
    """How `roundhouse up` starts the engine; options of vLLM have vLLM's names, and None leaves them to vLLM.

    `args` and `env` are passed to vLLM unchanged.
    """

    target: NonEmpty
    device: Literal["auto", "cpu", "gpu"] = "auto"
    placement: Literal["local", "ray"] = "local"
    resources: dict[str, Annotated[float, Meta(ge=0)]] = {}
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
    """`kind`, `health`, `stream_usage` and `ends_without_done`: None is found out, see router.upstream.engine_kinds.

    `share`, `revision`: see core.routing.traffic_share. `data_parallel`, `kv_events`, `kv_events_replay`: see
    settings.replicas. `sleep`, `sleep_level`, `gpu_memory`: see GpuSettings; `sleep_call`, `wake_call`: URLs that get a
    POST, or commands of the shell.
    """

    name: Name
    model: str
    profile: ProfileName | None = None
    task: EngineTask = "any"
    url: Address | None = None
    urls: list[Address] = []
    kind: EngineKind | None = None
    api_key: Secret | None = None
    headers: dict[str, Secret] = {}
    ca_file: NonEmpty | None = None
    health: NonEmpty | None = None
    stream_usage: bool | None = None
    ends_without_done: bool | None = None
    scheduling: Literal["fcfs", "priority"] | None = None
    served_model: str | None = None
    max_model_len: Count | None = None
    max_in_flight: Count | None = None
    share: Annotated[int, Meta(ge=0, le=100)] | None = None
    revision: str | None = None
    data_parallel: Annotated[int, Meta(ge=1, le=1024)] = 1
    kv_events: KvEndpoint | None = None
    kv_events_replay: KvEndpoint | None = None
    sleep: Literal["vllm", "process"] | None = None
    sleep_level: Literal[1, 2] = 1
    sleep_call: Secret | None = None
    wake_call: Secret | None = None
    gpu_memory: Bytes | None = None
    launch: LaunchSettings | None = None

    @property
    def addresses(self) -> list[str]:
        """The URLs of the engine's replicas, without the `/v1` that the paths of the API begin with."""
        return [base_url(url) for url in ([self.url] if self.url is not None else self.urls)]

    @property
    def request_headers(self) -> dict[str, str]:
        """What every request to the engine carries; its values are secrets."""
        authorization = {"authorization": f"Bearer {self.api_key}"} if self.api_key is not None else {}
        return authorization | {name.lower(): value for name, value in self.headers.items()}


class GpuSettings(Strict, frozen=True):
    """Engines that take turns at a GPU: `awake` of them at once, or as many as `memory` has room for.

    See router.core.resilience.gpu_turns.
    """

    name: Name
    engines: list[Name]
    awake: Count | None = None
    memory: Bytes | None = None
    min_awake: Seconds = Seconds(30)
    max_wait: Seconds = Seconds(120)
    wake_before_fallback: bool = True

    @property
    def capacity(self) -> float:
        return float(self.memory if self.memory is not None else self.awake or 1)

    def need(self, engine: EngineSettings) -> float:
        """Its part of the capacity."""
        return float(engine.gpu_memory or 0) if self.memory is not None else 1.0


class BreakerSettings(Strict, frozen=True):
    open_above: Share = 0.88
    close_below: Share = 0.79
    failures: Count = 5
    cooldown: Seconds = Seconds(10)


class TimeoutSettings(Strict, frozen=True):
    """`heartbeat`: seconds of silence after which the client of a stream gets a comment; 0: none."""

    connect: Seconds = Seconds(5)
    first_token: Seconds = Seconds(30)
    between_tokens: Seconds = Seconds(15)
    min_tokens_per_second: Annotated[float, Meta(gt=0)] = 10.0
    queue: Seconds = Seconds(10)
    heartbeat: Seconds = Seconds(15)


class RetrySettings(Strict, frozen=True):
    """`continuations` of one stream by other engines; see router.core.endpoints.continuation.stream_so_far."""

    continuations: Annotated[int, Meta(ge=0, le=10)] = 2


class WatchdogSettings(Strict, frozen=True):
    """`max_restarts` in an hour; `restart_after`: None is never; `max_temperature` in degrees Celsius."""

    enabled: bool = True
    interval: Seconds = Seconds(5)
    degraded_below: Share = 0.5
    degraded_for: Seconds = Seconds(60)
    cooldown: Seconds = Seconds(600)
    max_restarts: Annotated[int, Meta(ge=0, le=100)] = 2
    restart_after: Seconds | None = None
    drain_timeout: Seconds = Seconds(600)
    max_temperature: Annotated[float, Meta(ge=30, le=120)] = 85.0


class TracingSettings(Strict, frozen=True):
    """`endpoint` of an OTLP collector over HTTP; tracing is off without one. `sample`: the share of new traces."""

    endpoint: Address | None = None
    sample: Annotated[float, Meta(ge=0, le=1)] = 1.0
    headers: dict[str, Secret] = {}
    service_name: NonEmpty | None = None

    @property
    def enabled(self) -> bool:
        return bool(self.endpoint)


class Settings(Strict, frozen=True):
    """The whole file."""

    router: RouterSettings = RouterSettings()
    cache: CacheSettings = CacheSettings()
    responses: ResponsesSettings = ResponsesSettings()
    batch: BatchSettings = BatchSettings()
    auth: AuthSettings = AuthSettings()
    tenant: list[TenantSettings] = []
    model: list[ModelSettings] = []
    engine: list[EngineSettings] = []
    gpu: list[GpuSettings] = []
    breaker: BreakerSettings = BreakerSettings()
    timeouts: TimeoutSettings = TimeoutSettings()
    retry: RetrySettings = RetrySettings()
    watchdog: WatchdogSettings = WatchdogSettings()
    tracing: TracingSettings = TracingSettings()

    @property
    def auth_mode(self) -> AuthMode:
        """The mode in effect: if it is not set, `keys` where a tenant has a key, else `open`."""
        if self.auth.mode is not None:
            return self.auth.mode
        return "keys" if any(tenant.keys for tenant in self.tenant) else "open"

    @property
    def redis_socket(self) -> Path:
        """The socket of the private Redis of `url = "embedded"`."""
        return self._socket("redis.sock")

    @property
    def control_socket(self) -> Path:
        """The socket at which `roundhouse up` takes requests."""
        return self._socket("up.sock")

    @property
    def admin_key_file(self) -> Path:
        """The file with an admin key that commands on this machine find by themselves; `roundhouse up` makes one."""
        return Path(self.auth.admin_key_file or Path(self.router.state, "admin-key")).absolute()

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


def missing_extra(settings: Settings) -> str | None:
    """What has to be installed for these settings, in a sentence; None if nothing is missing."""
    if any(engine.kv_events is not None for engine in settings.engine) and importlib.util.find_spec("zmq") is None:
        return "engine.kv_events: needs pyzmq; pip install 'roundhouse-router[kv-events]'"
    if is_url(settings.batch.folder) and (lacking := _missing_package(settings.batch.folder)):
        return f"batch.folder: {lacking}"
    if not settings.tracing.enabled:
        return None
    try:
        spec = importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ModuleNotFoundError:
        spec = None
    return None if spec is not None else "tracing.endpoint: needs OpenTelemetry; pip install 'roundhouse-router[otel]'"


def is_url(folder: str) -> bool:
    """Whether `batch.folder` is the URL of an object store, in place of a path."""
    return "://" in folder


def _missing_package(url: str) -> str:
    """What is missing for the URL of an object store; empty if nothing is."""
    protocol = url.partition("://")[0]
    extra = "pip install 'roundhouse-router[s3]'"
    if importlib.util.find_spec("fsspec") is None:
        return f"needs fsspec; {extra}"
    from fsspec.registry import get_filesystem_class

    try:
        get_filesystem_class(protocol)
    except ImportError as error:
        return f"{error}; {extra}" if protocol == "s3" else str(error)
    except ValueError:
        return f"fsspec knows no `{protocol}://`"
    return ""


def tenants(settings: Settings) -> list[str]:
    named = [tenant.name for tenant in settings.tenant]
    return named if settings.auth_mode != "open" or DEFAULT_TENANT in named else [DEFAULT_TENANT, *named]


def groups(settings: Settings) -> dict[str, str | None]:
    """For each tenant that can send requests, the group with which it shares the engines' prefix caches."""
    own = {tenant.name: tenant.group for tenant in settings.tenant}
    active = [DEFAULT_TENANT] if settings.auth_mode == "open" else tenants(settings)
    return {name: own.get(name) for name in active}
