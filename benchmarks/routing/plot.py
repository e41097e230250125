"""The plot: the hit share over time, a panel for each workload. It needs matplotlib."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.routing.report import Figures
from benchmarks.routing.workloads import Change


def is_available() -> bool:
    return find_spec("matplotlib") is not None


def write_plot(path: Path, results: Sequence[Figures], changes: dict[str, Sequence[Change]]) -> None:
    """`changes`: by workload, each of which is a vertical line."""
    figure_module: Any = import_module("matplotlib.figure")
    workloads = list(dict.fromkeys(one.workload for one in results))
    figure = figure_module.Figure(figsize=(10, 3 * len(workloads)), layout="constrained")
    panels = figure.subplots(len(workloads), 1, squeeze=False)
    for panel, workload in zip(panels[:, 0], workloads, strict=True):
        ones = [one for one in results if one.workload == workload]
        for policy in dict.fromkeys(one.policy for one in ones):
            line = median_line([one for one in ones if one.policy == policy])
            panel.plot(list(line), [share * 100 for share in line.values()], label=policy)
        for change in changes.get(workload, ()):
            panel.axvline(change.at, color="grey", linestyle=":")
            label = change.label.partition(" at ")[0]
            panel.annotate(label, (change.at, 2), (3, 0), textcoords="offset points", rotation=90, fontsize=7)
        panel.set(title=workload, xlabel="seconds", ylabel="prompt tokens found (%)", xlim=(0, None), ylim=(0, 100))
        panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))  # beside the lines, not on them
    figure.savefig(path, dpi=120)


def median_line(ones: Sequence[Figures]) -> dict[float, float]:
    """The median over seeds for each interval."""
    starts = sorted({start for one in ones for start in one.hits_over_time})
    return {start: median(one.hits_over_time[start] for one in ones if start in one.hits_over_time) for start in starts}
