"""Sleep and wake of an engine, as vLLM's development endpoints have them.

vLLM first stops scheduling. From level 1 on it then frees the GPU's memory: level 1 keeps the weights in the memory of
the machine, level 2 drops them, both drop the KV cache. What arrives meanwhile is answered after the wake.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Literal

from engines.simulator.engine.core import EngineCore
from engines.simulator.settings import SimulatorSettings

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of running requests: they end with the finish reason `abort`, run to their end, or stand still."""

_MEMORY: Final = frozenset({"weights", "kv_cache"})
_STATES: Final = ("awake", "weights_offloaded", "discard_all")


class SleepMode:
    """The sleep of all ranks of an engine. `states`: the sample of each value of vllm:engine_sleep_state."""

    def __init__(self, cores: Sequence[EngineCore], settings: SimulatorSettings) -> None:
        self._cores = cores
        self._settings = settings
        self._freed: set[str] = set()
        self._is_paused = False
        self.states = dict.fromkeys(_STATES, 0.0) | {"awake": 1.0}

    @property
    def is_sleeping(self) -> bool:
        return self._is_paused or bool(self._freed)

    async def sleep(self, level: int, mode: PauseMode) -> None:
        """Returns when no request runs any more, and the memory is free."""
        self._is_paused = True
        await asyncio.gather(*(core.pause(mode) for core in self._cores))
        if level > 0:
            for core in self._cores:
                core.reset_prefix_cache()
            if "weights" not in self._freed:
                await asyncio.sleep(self._settings.sleep_seconds)
                self._freed |= _MEMORY
        state = {1: "weights_offloaded", 2: "discard_all"}.get(level)
        self.states = {name: float(name == state) for name in _STATES}

    async def wake_up(self, tags: Sequence[str] | None) -> bool:
        """Whether all of it is awake. `tags`: the memory to allocate again; None is all. "scheduling" alone: none."""
        wanted = _MEMORY if tags is None else set(tags) - {"scheduling"}
        # vLLM warns of tags that are not asleep, and then does nothing.
        if wanted and self._freed and (tags is None or wanted <= self._freed):
            await asyncio.sleep(self._settings.wake_seconds if "weights" in wanted else 0.0)
            self._freed -= wanted
        if self._freed:
            return False
        self._is_paused = False
        for core in self._cores:
            core.resume()
        self.states = {name: float(name == "awake") for name in _STATES}
        return True
