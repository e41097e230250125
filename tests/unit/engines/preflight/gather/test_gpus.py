"""GPUs through NVML. The device is a fake with the functions of nvidia-ml-py 13; no test needs a GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.preflight.gather.gpus import has_nvidia_card, read_nvml
from engines.preflight.observations import Gpu, GpuDriver, GpuProcess, Process


class NVMLError(Exception):
    """As in pynvml, its message is NVML's text for the error."""


class FakeNvml:
    """Two cards; on the first, a process holds memory. `fails_at` is the function that raises."""

    NVMLError = NVMLError

    def __init__(self, fails_at: str | None = None) -> None:
        self._fails_at = fails_at
        self.sessions = 0

    def _call(self, function: str, result: Any = None) -> Any:
        if function == self._fails_at:
            raise NVMLError("Driver/library version mismatch")
        assert self.sessions == 1 or function == "nvmlInit"
        return result

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name, as below
        self._call("nvmlInit")
        self.sessions += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> Any:  # noqa: N802
        return self._call("nvmlSystemGetDriverVersion", "570.86.15")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> Any:  # noqa: N802
        return self._call("nvmlSystemGetCudaDriverVersion_v2", 12_080)

    def nvmlDeviceGetCount(self) -> Any:  # noqa: N802
        return self._call("nvmlDeviceGetCount", 2)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self._call("nvmlDeviceGetHandleByIndex", f"handle {index}")

    def nvmlDeviceGetName(self, handle: str) -> Any:  # noqa: N802
        return self._call("nvmlDeviceGetName", f"NVIDIA L4 ({handle})")

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        used = 100 if handle == "handle 0" else 0
        return self._call("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=1000, free=1000 - used, used=used))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> Any:  # noqa: N802
        running = [SimpleNamespace(pid=4980, usedGpuMemory=100), SimpleNamespace(pid=5, usedGpuMemory=None)]
        return self._call("nvmlDeviceGetComputeRunningProcesses", running if handle == "handle 0" else [])


def describe(pid: int) -> Process | None:
    return Process(pid, "VLLM::EngineCore", is_orphan=True) if pid == 4980 else None


def test_cards_and_the_processes_that_hold_their_memory_are_read() -> None:
    nvml = FakeNvml()
    engine_core = GpuProcess(Process(4980, "VLLM::EngineCore", is_orphan=True), 100)
    hidden = GpuProcess(Process(5, "a process of another container"), None)
    assert read_nvml(nvml, describe) == GpuDriver(
        kind="nvidia",
        version="570.86.15",
        cuda=(12, 8),
        gpus=(
            Gpu(index=0, name="NVIDIA L4 (handle 0)", total=1000, free=900, processes=(engine_core, hidden)),
            Gpu(index=1, name="NVIDIA L4 (handle 1)", total=1000, free=1000),
        ),
    )
    assert nvml.sessions == 0


def test_a_driver_that_does_not_start_is_a_failure_with_its_reason() -> None:
    failed = GpuDriver(kind="nvidia", failure="NVML reports: Driver/library version mismatch")
    assert read_nvml(FakeNvml("nvmlInit"), describe) == failed


def test_a_call_that_fails_later_ends_the_session_too() -> None:
    nvml = FakeNvml("nvmlDeviceGetMemoryInfo")
    assert read_nvml(nvml, describe).failure == "NVML reports: Driver/library version mismatch"
    assert nvml.sessions == 0


@pytest.mark.parametrize(
    ("vendor", "device_class", "is_card"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x040300", False),  # its audio device
        ("0x8086", "0x030000", False),
    ],
)
def test_a_card_without_a_driver_is_found_on_the_bus(
    tmp_path: Path, vendor: str, device_class: str, is_card: bool
) -> None:
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{device_class}\n")
    assert has_nvidia_card(tmp_path) is is_card
    assert has_nvidia_card(tmp_path / "none") is False
