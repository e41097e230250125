"""Prints tables of all panels with what their queries returned under a small load, as docs/dashboards.md has them."""

import asyncio
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from tests.dashboards.observed_load import observe
from tests.dashboards.panel_figures import Figure
from tests.dashboards.testbed import Testbed

_SHOWN = 3  # series of a panel


def _row(figures: list[Figure]) -> str:
    panel = figures[0].panel
    shown = [
        f"{' '.join(name.split())} {value:.3g}" if name != panel.title else f"{value:.3g}"
        for figure in figures
        for name, value in figure.values.items()
    ]
    more = [f"… ({len(shown)} series)"] if len(shown) > _SHOWN else []
    values = ", ".join(shown[:_SHOWN] + more)
    missing = "; ".join(f"no data: {figure.query.legend}" for figure in figures if not figure.values)
    return f"| {panel.title} | {panel.unit.removeprefix('suffix: ')} | {'; '.join(filter(None, (values, missing)))} |"


async def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        async with Testbed(Path(folder)) as testbed:
            observation = await observe(testbed)
    for dashboard, of_dashboard in groupby(observation.figures, key=lambda figure: figure.dashboard):
        lines = [f"### {dashboard.title}\n", "| panel | unit | its queries returned |", "| --- | --- | --- |"]
        lines += [_row(list(figures)) for _, figures in groupby(of_dashboard, key=lambda figure: figure.panel.title)]
        sys.stdout.write("\n".join(lines) + "\n\n")
    return len(observation.without_data)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
