"""Steps of vLLM on a CPU that are slow while the file ROUNDHOUSE_TEST_SLOW_STEPS exists, by `--worker-extension-cls`.

The file may say by how many seconds; by default, STEP_SECONDS.

On a fast machine, the first of a hundred streams has ended before the last has begun; with slow steps, all are under
way at once. The patches for tiny models are loaded too, since vLLM takes one extension.
"""

import contextlib
import importlib
import os
import time
from pathlib import Path
from typing import Any

STEP_SECONDS = 0.2


class SlowSteps:
    """The class that vLLM mixes into its worker. It is empty, since importing this module applies the patch."""


def make_steps_slow(runner: Any, file: Path) -> None:
    execute_model = runner.execute_model

    def execute_slowly(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(FileNotFoundError):
            time.sleep(float(file.read_text() or STEP_SECONDS))
        return execute_model(*arguments, **options)

    runner.execute_model = execute_slowly


importlib.import_module("engines.tiny.worker_extension")
_runner = importlib.import_module("vllm.v1.worker.cpu_model_runner").CPUModelRunner
make_steps_slow(_runner, Path(os.environ["ROUNDHOUSE_TEST_SLOW_STEPS"]))
