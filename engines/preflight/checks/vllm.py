"""Is the vLLM installed that the engines are written for?"""

import re
from collections.abc import Iterator
from typing import Final

from engines.preflight.finding import Finding, error, warning
from engines.preflight.observations import Observations

MIN_VERSION: Final = (0, 32)


def check_vllm(observed: Observations) -> Iterator[Finding]:
    version = observed.machine.vllm
    if not observed.engines:
        return
    if version is None:
        problem = "is not installed; `roundhouse up` starts simulated engines instead"
        remedy = "Run `pip install roundhouse-router[vllm]`, or name the Python that has it with --vllm-python."
        yield error(None, "vLLM", problem, remedy)
        return
    parts = re.match(r"(\d+)\.(\d+)", version)
    if parts is not None and (int(parts[1]), int(parts[2])) < MIN_VERSION:
        problem = f"{version} is older than {'.'.join(map(str, MIN_VERSION))}; it may not know all options"
        yield warning(None, "vLLM", problem, "Run `pip install --upgrade vllm`.")
