"""What follows from a round of probes, in its order."""

from collections.abc import Callable

from router.flow.attempts.admission import Admission
from router.flow.attempts.engine_selection import EngineSelector
from router.flow.brownout import PressureMonitor


def on_probe_round(
    selector: EngineSelector, pressure_monitor: PressureMonitor, admission: Admission, update_gauges: Callable[[], None]
) -> None:
    """To be called when all engines have been probed."""
    selector.on_probe_round()
    pressure_monitor.on_probe_round()
    update_gauges()  # after the breakers, so that the metrics show the state that requests meet
    # Last, because waiting requests start on what the probe and the others have just updated.
    admission.recheck()
