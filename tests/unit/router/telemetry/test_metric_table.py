"""The table has all metrics of the page, and the code records each of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

from router.telemetry.metric_objects import KEPT
from router.telemetry.metric_table import METRICS, MetricRow
from router.telemetry.telemetry import Telemetry
from router.telemetry.worker_metrics import FILE_SIZES
from tests.support.offenders import assert_none
from tests.support.paths import ROOT

RECORDING = ROOT / "router" / "telemetry"


def constants(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def described(row: MetricRow) -> list[str]:
    """The lines of a page in Prometheus' text format, which knows no `info`."""
    kind = "gauge" if row.kind == "info" else row.kind
    return [f"# HELP {row.name} {row.help}", f"# TYPE {row.name} {kind}"]


def test_a_page_describes_the_rows_of_the_table_in_their_order() -> None:
    page = Telemetry(log_format="text").render().decode().splitlines()
    lines = [line for line in page if line.startswith("#") and "_created " not in line]
    assert lines == [line for row in METRICS.values() for line in described(row)]


def test_every_metric_is_used_by_the_code_that_records() -> None:
    used = {text for path in RECORDING.rglob("*.py") if path.name != "metric_table.py" for text in constants(path)}
    assert_none(name for name in METRICS if name not in used)


def test_a_name_has_the_suffix_of_its_kind() -> None:
    for row in METRICS.values():
        assert row.name.endswith("_total") == (row.kind == "counter"), row.name
        assert row.name.endswith("_info") == (row.kind == "info"), row.name
        assert bool(row.buckets) == (row.kind == "histogram"), row.name


def test_a_kept_gauge_says_how_the_values_of_several_workers_become_one() -> None:
    assert [row.name for row in KEPT if (row.workers is not None) != (row.kind == "gauge")] == []


def test_each_file_of_a_worker_has_a_size() -> None:
    assert set(FILE_SIZES) == {f"{row.kind}_{row.workers}" if row.workers else row.kind for row in KEPT}
