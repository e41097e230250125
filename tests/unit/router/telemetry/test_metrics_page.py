"""The page at /metrics, made from the files of several workers."""

import os
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry

from router.telemetry.metrics_page import collect

_COUNT = "from prometheus_client import Counter; Counter('asked', 'Questions').inc(3)"


def test_a_file_that_a_worker_has_just_created_hides_no_values_of_others(tmp_path: Path) -> None:
    # prometheus_client writes to files only if the variable is set when it is imported.
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", _COUNT], env=environment, check=True)
    for name in ("counter_1.db", "gauge_livesum_1.db", "histogram_1.db"):
        (tmp_path / name).touch()
    (family,) = collect(CollectorRegistry(), str(tmp_path))
    assert [(sample.name, sample.value) for sample in family.samples] == [("asked_total", 3.0)]
