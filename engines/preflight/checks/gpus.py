"""Are there the GPUs, and the driver, that the engines are configured for?"""

from collections.abc import Iterator, Sequence
from typing import Final

from engines.preflight.finding import Finding, error, note, warning
from engines.preflight.observations import NVML_NOT_INSTALLED, EngineFacts, Observations

MIN_CUDA: Final = (13, 0)
"""The CUDA that the wheels of vLLM 0.32 are built for: VLLM_MAIN_CUDA_VERSION in its envs.py."""

_MIN_DRIVER: Final = 580  # the first driver that supports it
_MIN_SHARED_MEMORY: Final = 1 << 30


def check_gpus(observed: Observations) -> Iterator[Finding]:
    if any(engine.configured_gpus or not engine.options.on_cpu for engine in observed.engines):
        yield from _check_driver(observed)
    for engine in observed.engines:
        yield from _check_count(engine, observed)
        yield from _check_split(engine)
        yield from _check_shared_memory(engine, observed.machine.shared_memory)


def _check_driver(observed: Observations) -> Iterator[Finding]:
    driver = observed.driver
    if driver.kind == "amd":
        yield note(None, "GPUs", "those of AMD are not checked: neither their memory nor their number")
    elif driver.failure == NVML_NOT_INSTALLED:
        problem = f"{driver.failure}; GPUs, their memory and their driver were not checked"
        yield warning(None, "GPUs", problem, "Install the extra roundhouse-router[gpu].")
    elif driver.failure is not None:
        remedy = "Load the driver until `nvidia-smi` works; after an update, reboot; a container needs `--gpus all`."
        yield error(None, "driver", driver.failure, remedy)
    elif driver.cuda is not None and driver.cuda < MIN_CUDA:
        version, needed = (".".join(map(str, cuda)) for cuda in (driver.cuda, MIN_CUDA))
        problem = f"{driver.version} supports CUDA {version}; vLLM's own wheels need {needed}"
        remedy = f"Update the driver to {_MIN_DRIVER} or later, or install a vLLM that is built for CUDA {version}."
        yield warning(None, "driver", problem, remedy)


def _check_count(engine: EngineFacts, observed: Observations) -> Iterator[Finding]:
    options, driver = engine.options, observed.driver
    if driver.kind == "none" and (engine.configured_gpus or not options.on_cpu):
        problem = f"this machine has no GPU, and the engine is configured for {_list(engine.configured_gpus) or 'one'}"
        remedy = "Run it on a machine with that GPU, or remove gpus to run vLLM's CPU build."
        yield error(engine.name, "launch.gpus", problem, remedy)
    if options.on_cpu or driver.failure is not None or driver.kind != "nvidia":
        return
    known = [gpu.index for gpu in driver.gpus]
    absent = [index for index in options.gpus or () if index not in known]
    if absent:
        problem = f"there is no {_list(absent)}; this machine has {_list(known) or 'none'}"
        yield error(engine.name, "launch.gpus", problem, "Set gpus to some that exist.")
    count = len(options.gpus) if options.gpus is not None else len(known)
    if options.gpu_count > count:
        problem = (
            f"the engine needs {options.gpu_count} GPUs for its tensor and pipeline parallel sizes, and has {count}"
        )
        yield error(engine.name, "launch.gpus", problem, "Add GPUs, or reduce the parallel sizes.")


def _check_split(engine: EngineFacts) -> Iterator[Finding]:
    heads, size = engine.target.shape.attention_heads, engine.options.tensor_parallel
    if heads is not None and heads % size:
        problem = f"{heads} attention heads of the target cannot be divided among {size} GPUs; vLLM refuses to start"
        divisors = ", ".join(str(n) for n in range(1, size + 1) if heads % n == 0)
        yield error(engine.name, "launch.gpus", problem, f"Use one of these numbers of GPUs: {divisors}.")


def _check_shared_memory(engine: EngineFacts, size: int | None) -> Iterator[Finding]:
    if engine.options.gpu_count > 1 and size is not None and size < _MIN_SHARED_MEMORY:
        problem = f"has {size >> 20} MiB, through which the processes of an engine with several GPUs communicate"
        remedy = "Start the container with `--ipc=host` or `--shm-size=8g`."
        yield warning(engine.name, "/dev/shm", problem, remedy)  # noqa: S108 - the name of the setting


def _list(indices: Sequence[int]) -> str:
    return f"GPU {', '.join(map(str, indices))}" if indices else ""
