"""Reads what engines/switch/room.py decides about."""

import asyncio
import os
from collections.abc import Sequence

from engines.launcher import Program
from engines.plan import UpPlan
from engines.preflight.gather.engines import read_options
from engines.preflight.gather.gpus import read_gpus
from engines.spec import EngineSpec
from engines.switch.room import lack_of_room
from engines.switch.switcher import FindLackOfRoom


def find_lack_of_room(plan: UpPlan, program: Program) -> FindLackOfRoom:
    """Asks NVML about the free memory. A simulator uses no GPU."""

    def find(specs: Sequence[EngineSpec]) -> str | None:
        return lack_of_room([read_options(spec, plan, os.environ) for spec in specs], read_gpus())

    async def find_in_thread(specs: Sequence[EngineSpec]) -> str | None:
        return await asyncio.to_thread(find, specs) if program == "vllm" else None

    return find_in_thread
