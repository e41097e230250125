"""The facts that the checks are about. None means unknown, never 0."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from engines.preflight.launch_options import LaunchOptions

NVML_NOT_INSTALLED: Final = "nvidia-ml-py is not installed"
"""`GpuDriver.failure` without the package."""


class Process(msgspec.Struct, frozen=True):
    """A process of this machine. `is_orphan`: its parent has died, so that init is its parent now."""

    pid: int
    command: str
    is_orphan: bool = False

    @property
    def is_vllm(self) -> bool:
        return "vllm" in self.command.lower()


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """The result of binding the address of an engine (or of the router: `engine` is None).

    - `failure`: why it cannot be bound; None if it can.
    - `owners`: the processes that listen there, as far as this user may see them.
    - `is_healthy`: whether /health there answers with 200; None if it was not asked, because the port is free.
    """

    engine: str | None
    host: str
    port: int
    failure: Literal["in use", "no such address", "not permitted", "unknown host"] | None = None
    owners: tuple[Process, ...] = ()
    is_healthy: bool | None = None


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What of config.json determines a model's memory and context.

    - `context`: in tokens.
    - `layers`, `kv_layers`: all layers, and those whose KV cache grows with the context.
    - `kv_heads`: 1 where the heads share one compressed vector (MLA).
    - `kv_values_per_token`: the values that one layer keeps per token, over all heads.
    - `parameters`: the number of weights, an estimate; `parameter_bytes`: the size of one.
    """

    vocab_size: int | None = None
    context: int | None = None
    layers: int | None = None
    kv_layers: int | None = None
    parameters: int | None = None
    attention_heads: int | None = None
    kv_heads: int | None = None
    kv_values_per_token: int | None = None
    parameter_bytes: float | None = None
    is_quantized: bool = False


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a target or draft.

    - `folder`: where its files are; None if they are not on this machine.
    - `is_local`: whether the name is a folder rather than a name on the hub.
    - `damage`: what is wrong with its files, a phrase for each.
    - `weight_bytes`: of its files; None if they are not there.
    - `tokens`: token ids by spelling, added tokens included.
    - `min_p`: the default in generation_config.json.
    """

    name: str
    is_local: bool
    folder: str | None
    damage: tuple[str, ...] = ()
    shape: ModelShape = ModelShape()
    weight_bytes: int | None = None
    tokens: Mapping[str, int] | None = None
    min_p: float | None = None


class GpuProcess(msgspec.Struct, frozen=True):
    """A process that holds memory of a GPU; `memory` in bytes, None where the driver does not report it."""

    process: Process
    memory: int | None


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """`index` as in CUDA_VISIBLE_DEVICES; memory in bytes."""

    index: int
    name: str
    total: int
    free: int
    processes: tuple[GpuProcess, ...] = ()


class GpuDriver(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML reports.

    - `kind`: whose GPUs the machine has, by its device files.
    - `failure`: why NVML could not be asked; `gpus` is empty then, and nothing is known about them.
    - `cuda`: the newest CUDA that the driver supports, as in (13, 0).
    """

    kind: Literal["nvidia", "amd", "none"]
    failure: str | None = None
    version: str | None = None
    cuda: tuple[int, int] | None = None
    gpus: tuple[Gpu, ...] = ()


class Disk(msgspec.Struct, frozen=True):
    """A file system that engines write to: what for, one path on it, and its free bytes."""

    purpose: Literal["models", "logs"]
    path: str
    free: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in bytes; `shared_memory` is the size of /dev/shm. `vllm` is the version of vLLM."""

    vllm: str | None
    total_memory: int | None = None
    available_memory: int | None = None
    shared_memory: int | None = None
    disks: tuple[Disk, ...] = ()


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """- `gpu`: the name of a `[[gpu]]`. `most_awake`: how many of its engines are awake at once; None: by their memory.
    - `memory`: what the engine is said to need, in bytes; None without a memory of the group.
    - `keeps_weights`: in the memory of the machine, while it sleeps.
    """

    gpu: str
    most_awake: int | None
    memory: int | None = None
    keeps_weights: bool = True


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that `roundhouse up` would start: what it is configured to be, and its models.

    `configured_gpus` are those of the configuration; `options.gpus` those that the engine would get. `turns`: the
    `[[gpu]]` at which it takes turns with others.
    """

    name: str
    public_model: str
    configured_gpus: tuple[int, ...] = ()
    options: LaunchOptions
    target: Model
    draft: Model | None = None
    turns: Turns | None = None


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """`elsewhere`: the public models of engines that are started elsewhere, with or without a draft, unknown here."""

    ports: tuple[Port, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    elsewhere: tuple[str, ...] = ()
    driver: GpuDriver
    machine: Machine
