"""Whether new engines have room on the GPUs beside the old ones."""

from typing import Any

import pytest

from engines.preflight.launch_options import LaunchOptions
from engines.preflight.observations import Gpu, GpuDriver
from engines.switch.room import lack_of_room

GIB = 1 << 30


def driver(*free: int) -> GpuDriver:
    gpus = tuple(Gpu(index=index, name="A10", total=24 * GIB, free=size * GIB) for index, size in enumerate(free))
    return GpuDriver(kind="nvidia", gpus=gpus)


def options(**fields: Any) -> LaunchOptions:
    return LaunchOptions(target="llama", **{"memory_utilization": 0.5, **fields})


@pytest.mark.parametrize(
    ("engines", "free", "lacks"),
    [
        ([options()], [12], False),
        ([options()], [11], True),
        ([options(gpus=(1,))], [0, 12], False),
        ([options(gpus=(1,))], [24, 11], True),
        ([options(tensor_parallel=2)], [12, 11], True),
        ([options(), options()], [23], True),
        ([options(gpus=(0,)), options(gpus=(1,))], [12, 12], False),
        ([options(on_cpu=True)], [0], False),
        ([options(kv_cache_bytes=GIB)], [11], True),
        ([options()], [], False),
    ],
)
def test_there_is_room_if_the_share_of_every_gpu_is_free(
    engines: list[LaunchOptions], free: list[int], lacks: bool
) -> None:
    assert (lack_of_room(engines, driver(*free)) is not None) is lacks


def test_the_reason_names_the_gpu_and_the_sizes() -> None:
    assert lack_of_room([options()], driver(3)) == "GPU 0 has 3.0 GiB free, and 12.0 GiB are needed"


def test_what_is_unknown_prevents_nothing() -> None:
    assert lack_of_room([options()], GpuDriver(kind="nvidia", failure="nvidia-ml-py is not installed")) is None
