"""Numbers, lists and processes, as a message shows them."""

from collections.abc import Iterable

from engines.preflight.observations import Process


def gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def process_name(process: Process) -> str:
    return f"process {process.pid} ({process.command})"


def listed(items: Iterable[str]) -> str:
    """`a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
