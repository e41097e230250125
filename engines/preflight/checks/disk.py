"""Is there room for the models that would be downloaded, and for logs?"""

from collections.abc import Iterator
from typing import Final

from engines.preflight.finding import Finding, error, warning
from engines.preflight.memory_estimate import download_bytes
from engines.preflight.observations import Disk, Model, Observations
from engines.preflight.wording import gib

MIN_FREE: Final = 1 << 30
"""Bytes of a disk; with less, logs and the compilation cache of vLLM fill it soon."""


def check_disk(observed: Observations) -> Iterator[Finding]:
    for disk in observed.machine.disks:
        if disk.purpose == "models":
            yield from _check_downloads(disk, observed)
        elif disk.free < MIN_FREE:
            problem = f"{gib(disk.free)} are free for {disk.path}, where logs and Redis' data are"
            yield warning(None, "disk", problem, "Delete what is not needed, or set router.state to another disk.")


def _check_downloads(disk: Disk, observed: Observations) -> Iterator[Finding]:
    """`is_offline` engines download nothing."""
    absent: dict[str, Model] = {
        model.name: model
        for engine in observed.engines
        for model in (engine.target, engine.draft)
        if model is not None and model.folder is None and not model.is_local and not engine.options.is_offline
    }
    if not absent:
        return
    needed = sum(download_bytes(model) or 0 for model in absent.values())
    remedy = "Delete what is not needed, or set HF_HOME to another disk."
    if needed > disk.free:
        problem = f"{gib(disk.free)} are free for {disk.path}; the models to download have about {gib(needed)}"
        yield error(None, "disk", problem, remedy)
    elif disk.free < MIN_FREE:
        yield warning(None, "disk", f"{gib(disk.free)} are free for {disk.path}, where models are downloaded", remedy)
