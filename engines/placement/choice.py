"""Chooses the process for an engine: on this machine or on a Ray cluster."""

from pathlib import Path

from engines.launcher import EngineCommand
from engines.placement.engine_process import EngineProcess
from engines.placement.ray_process import RayProcess


def engine_process(name: str, command: EngineCommand, log: Path, url: str) -> EngineProcess:
    """`url`: where the engine serves if it runs on this machine."""
    if command.ray_request is None:
        return EngineProcess(name, command.argv, log, command.env, url)
    return RayProcess(name, command.argv, log, command.env, command.ray_request)
