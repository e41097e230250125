"""The timeouts of a router whose engines have a fault of the simulator."""

from collections.abc import Mapping
from typing import Any, Final

_SILENT: Final = {"stall", "ttft"}


def timeouts_for(*faults: Mapping[str, Any] | None, total: bool = False) -> str:
    """The [timeouts]: short ones only for a fault that is silence, since a busy machine pauses too.

    `total`: the total timeout, which is the only one of JSON, is short too.
    """
    if not any(fault is not None and fault["fault"] in _SILENT for fault in faults):
        return ""
    short = '[timeouts]\nfirst_token = "2s"\nbetween_tokens = "2s"'
    return f"{short}\nmin_tokens_per_second = 1e6" if total else short
