"""GPUs, from NVML: through nvidia-ml-py, which is imported only here and only if there is a GPU."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from engines.preflight.gather.processes import describe
from engines.preflight.observations import NVML_NOT_INSTALLED, Gpu, GpuDriver, GpuProcess, Process

_DEVICES: Final[tuple[tuple[Path, Literal["nvidia", "amd"]], ...]] = (
    (Path("/dev/nvidiactl"), "nvidia"),
    (Path("/dev/kfd"), "amd"),
)

PCI: Final = Path("/sys/bus/pci/devices")
NO_DRIVER: Final = "there is an NVIDIA GPU, but its device files are not there"

_NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY_CLASS: Final = "0x03"  # VGA and 3D controllers; other devices of a card are for audio and USB


def read_gpus() -> GpuDriver:
    kind = next((kind for device, kind in _DEVICES if device.exists()), None)
    if kind is None:
        return GpuDriver(kind="nvidia", failure=NO_DRIVER) if has_nvidia_card(PCI) else GpuDriver(kind="none")
    if kind != "nvidia":
        return GpuDriver(kind=kind)
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return GpuDriver(kind="nvidia", failure=NVML_NOT_INSTALLED)
    return read_nvml(nvml)


def has_nvidia_card(pci: Path) -> bool:
    """Whether Linux lists one on the PCI bus, which it does without a driver too."""
    try:
        return any(
            (device / "vendor").read_text().strip() == _NVIDIA_VENDOR
            and (device / "class").read_text().startswith(_DISPLAY_CLASS)
            for device in pci.iterdir()
        )
    except OSError:
        return False


def read_nvml(nvml: Any, describe_process: Callable[[int], Process | None] = describe) -> GpuDriver:
    """`nvml` is the module pynvml, or a fake with the functions that are used here."""
    try:
        with nvml_session(nvml):
            cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()  # 13000 for 13.0
            count = nvml.nvmlDeviceGetCount()
            return GpuDriver(
                kind="nvidia",
                version=nvml.nvmlSystemGetDriverVersion(),
                cuda=(cuda // 1000, cuda % 1000 // 10),
                gpus=tuple(_read_gpu(nvml, index, describe_process) for index in range(count)),
            )
    except nvml.NVMLError as failure:
        return GpuDriver(kind="nvidia", failure=f"NVML reports: {failure}")


@contextmanager
def nvml_session(nvml: Any) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _read_gpu(nvml: Any, index: int, describe_process: Callable[[int], Process | None]) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return Gpu(
        index=index,
        name=nvml.nvmlDeviceGetName(handle),
        total=memory.total,
        free=memory.free,
        # In a container, NVML reports pids of the host, which are not found here.
        processes=tuple(
            GpuProcess(
                describe_process(one.pid) or Process(one.pid, "a process of another container"), one.usedGpuMemory
            )
            for one in running
        ),
    )
