"""Decides whether new engines have room on the GPUs beside the old ones."""

import math
from collections import Counter
from collections.abc import Sequence

from engines.preflight.launch_options import LaunchOptions
from engines.preflight.observations import GpuDriver
from engines.preflight.wording import gib


def lack_of_room(engines: Sequence[LaunchOptions], driver: GpuDriver) -> str | None:
    """Why the new engines cannot start now; None if they can, or if nothing is known about the GPUs.

    vLLM refuses to start unless its share of a GPU's memory is free, also with a KV cache of fixed size.
    """
    wanted: Counter[int] = Counter()
    totals = {gpu.index: gpu.total for gpu in driver.gpus}
    for options in engines:
        if not options.on_cpu:
            for index in _gpus_of(options, driver):
                wanted[index] += math.ceil(totals.get(index, 0) * options.memory_utilization)
    for gpu in driver.gpus:
        if wanted[gpu.index] > gpu.free:
            return f"GPU {gpu.index} has {gib(gpu.free)} free, and {gib(wanted[gpu.index])} are needed"
    return None


def _gpus_of(options: LaunchOptions, driver: GpuDriver) -> Sequence[int]:
    """The GPUs that an engine uses: its own, or without any configured, the first ones."""
    indices = options.gpus if options.gpus is not None else [gpu.index for gpu in driver.gpus]
    return indices[: options.gpu_count]
