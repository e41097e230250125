"""The temperature and the power of an engine's GPUs, from NVML."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.preflight.gather.gpus import nvml_session
from engines.spec import LaunchSpec

_NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")


class GpuReading(msgspec.Struct, frozen=True):
    """Of all GPUs of an engine: the highest temperature, and the sum of the power. None is unknown."""

    celsius: float | None = None
    watts: float | None = None


ReadGpus = Callable[[Sequence[int]], GpuReading]
"""Reads the GPUs with these indices. It may block."""


def gpu_indices(launch: LaunchSpec) -> tuple[int, ...]:
    """The GPUs that an engine uses, as NVML counts them; without `gpus`, vLLM takes the first ones."""
    if launch.device == "cpu":
        return ()
    return tuple(launch.gpus or range(launch.tensor_parallel * launch.pipeline_parallel_size))


def find_gpu_reader() -> ReadGpus | None:
    """None on a machine without an NVIDIA driver, or without nvidia-ml-py (`pip install roundhouse-router[gpu]`)."""
    if not _NVIDIA_DEVICE.exists():
        return None
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    return lambda indices: read_gpus(nvml, indices)


def read_gpus(nvml: Any, indices: Sequence[int]) -> GpuReading:
    """`nvml` is the module pynvml, or a fake with the functions that are used here."""
    try:
        with nvml_session(nvml):
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
            celsius = [_read(nvml, nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU) for gpu in handles]
            milliwatts = [_read(nvml, nvml.nvmlDeviceGetPowerUsage, gpu) for gpu in handles]
    except nvml.NVMLError:  # no driver, or no such GPU
        return GpuReading()
    return GpuReading(
        celsius=max((value for value in celsius if value is not None), default=None),
        watts=sum(value for value in milliwatts if value is not None) / 1000 if None not in milliwatts else None,
    )


def _read(nvml: Any, function: Callable[..., int], *arguments: Any) -> int | None:
    try:
        return function(*arguments)
    except nvml.NVMLError:  # a card without this sensor
        return None
