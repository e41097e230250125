"""The number of GPUs, their driver, and how a model is split among them."""

from typing import Any

import pytest

from engines.preflight.checks.gpus import check_gpus
from engines.preflight.finding import Finding
from engines.preflight.gather.gpus import NO_DRIVER
from engines.preflight.observations import NVML_NOT_INSTALLED, EngineFacts, GpuDriver
from tests.support.preflight_facts import make_engine, make_gpu, make_machine, make_observations


def driver(count: int = 1, **fields: Any) -> GpuDriver:
    given: dict[str, Any] = {"kind": "nvidia", "version": "580.95.05", "cuda": (13, 0)} | fields
    return GpuDriver(gpus=tuple(make_gpu(index) for index in range(count)), **given)


def findings(*engines: EngineFacts, driver: GpuDriver, **machine: Any) -> list[Finding]:
    return list(check_gpus(make_observations(*engines, driver=driver, machine=make_machine(**machine))))


def test_engines_with_the_gpus_that_they_need_are_no_problem() -> None:
    assert findings(make_engine(), make_engine("b", gpus=(0, 1), tensor_parallel=2), driver=driver(2)) == []


def test_a_gpu_that_is_not_there_is_an_error() -> None:
    (found,) = findings(make_engine(gpus=(1,)), driver=driver())
    assert (found.severity, found.setting) == ("error", "launch.gpus")
    assert found.problem == "there is no GPU 1; this machine has GPU 0"


def test_more_parallel_processes_than_gpus_are_an_error() -> None:
    (found,) = findings(make_engine(gpus=(0,), tensor_parallel=2, pipeline_parallel=2), driver=driver(4))
    assert "needs 4 GPUs for its tensor and pipeline parallel sizes, and has 1" in found.problem


def test_without_configured_gpus_all_of_the_machine_count() -> None:
    assert findings(make_engine(gpus=None, tensor_parallel=2), driver=driver(2)) == []
    (found,) = findings(make_engine(gpus=None, tensor_parallel=4), driver=driver(2))
    assert "has 2" in found.problem


def test_an_engine_for_a_gpu_on_a_machine_without_one_is_an_error() -> None:
    engine = make_engine(on_cpu=True, gpus=(0,))
    (found,) = findings(engine, driver=GpuDriver(kind="none"))
    assert found.severity == "error"
    assert "this machine has no GPU, and the engine is configured for GPU 0" in found.problem


def test_an_engine_for_the_cpu_needs_no_gpu() -> None:
    assert findings(make_engine(on_cpu=True, gpus=None), driver=GpuDriver(kind="none")) == []


def test_heads_that_cannot_be_divided_among_the_gpus_are_an_error_with_the_numbers_that_can() -> None:
    (found,) = findings(make_engine(gpus=(0, 1, 2), tensor_parallel=3), driver=driver(3))
    assert "32 attention heads of the target cannot be divided among 3 GPUs" in found.problem
    assert found.remedy.endswith(": 1, 2.")


def test_an_old_driver_is_one_warning_for_all_engines() -> None:
    old = driver(version="570.86.15", cuda=(12, 8))
    (found,) = findings(make_engine("a"), make_engine("b"), driver=old)
    assert (found.severity, found.engine, found.setting) == ("warning", None, "driver")
    assert "570.86.15 supports CUDA 12.8" in found.problem


def test_a_driver_that_does_not_answer_is_an_error_and_nothing_is_said_about_its_gpus() -> None:
    failed = GpuDriver(kind="nvidia", failure="NVML reports: Driver/library version mismatch")
    (found,) = findings(make_engine(gpus=(5,)), driver=failed)
    assert (found.severity, found.problem) == ("error", "NVML reports: Driver/library version mismatch")


def test_without_a_driver_the_engine_would_run_on_the_cpu_and_the_driver_is_the_problem() -> None:
    without = GpuDriver(kind="nvidia", failure=NO_DRIVER)
    (found,) = findings(make_engine(on_cpu=True, gpus=(0,)), driver=without)
    assert (found.severity, found.setting) == ("error", "driver")
    assert findings(make_engine(on_cpu=True, gpus=None), driver=without) == []


def test_without_nvml_it_is_said_what_was_not_checked() -> None:
    (found,) = findings(make_engine(), driver=GpuDriver(kind="nvidia", failure=NVML_NOT_INSTALLED))
    assert found.severity == "warning"
    assert "roundhouse-router[gpu]" in found.remedy


def test_of_gpus_of_amd_it_is_said_that_they_are_not_checked() -> None:
    (found,) = findings(make_engine(gpus=(7,)), driver=GpuDriver(kind="amd"))
    assert found.severity == "note"


@pytest.mark.parametrize(("gpus", "count"), [((0, 1), 1), ((0,), 0)])
def test_little_shared_memory_is_a_warning_for_engines_with_several_gpus(gpus: tuple[int, ...], count: int) -> None:
    engine = make_engine(gpus=gpus, tensor_parallel=len(gpus))
    found = findings(engine, driver=driver(2), shared_memory=64 << 20)
    assert [finding.problem.partition(",")[0] for finding in found] == ["has 64 MiB"] * count
