"""Memory and descriptors of processes, from /proc (Linux)."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class ProcessSample(NamedTuple):
    """Sums over processes.

    `rss_kb`: resident memory, shared pages counted in each process; `pss_kb`: shared pages divided among those that
    share them; `uss_kb`: pages of one process only. `descriptors`: open files, with sockets.
    """

    processes: int
    rss_kb: int
    pss_kb: int
    uss_kb: int
    descriptors: int
    threads: int


def sample_processes(pids: Iterable[int]) -> ProcessSample:
    """A process that has exited meanwhile is left out."""
    samples = [sample for pid in pids if (sample := _sample(Path(f"/proc/{pid}"))) is not None]
    return ProcessSample(*map(sum, zip(*samples, strict=True))) if samples else ProcessSample(0, 0, 0, 0, 0, 0)


def _sample(folder: Path) -> ProcessSample | None:
    try:
        sizes = _kilobytes((folder / "smaps_rollup").read_text())
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
        threads = sum(1 for _ in (folder / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return None
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return ProcessSample(1, sizes["Rss"], sizes["Pss"], own, descriptors, threads)


def _kilobytes(rollup: str) -> dict[str, int]:
    lines = (line.split() for line in rollup.splitlines() if line.endswith(" kB"))
    return {words[0].rstrip(":"): int(words[1]) for words in lines}
