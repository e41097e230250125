"""lab/soak.py on real routers: it ends as it should, and leaves nothing. No figure is checked."""

import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.benchmark_process import run_benchmark
from tests.support.paths import ROOT
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_ctrl_c_in_a_terminal_ends_a_soak_with_its_findings(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    # Short, since a path of a Unix socket is at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="rh-") as folder:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "lab.soak", "--minutes", "30", "--rate", "20", "--json", str(report),
            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder}, start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            logs = Path(folder)
            await eventually(
                lambda: any("roundhouse.access" in log.read_text() for log in logs.glob("rh-soak-*/*.log"))
            )
            # A terminal sends it to all processes of the foreground job.
            os.killpg(process.pid, signal.SIGINT)
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:  # the test is cancelled
                process.send_signal(signal.SIGINT)
                await process.wait()
        assert "Traceback" not in output.decode()
        assert process.returncode in (0, 1)
        assert json.loads(report.read_text())["load"]["completed"] > 0
        assert list(logs.iterdir()) == []


async def test_a_soak_restarts_reloads_and_leaves_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    code, output = await run_benchmark("lab.soak", "--minutes", "0.1", "--rate", "20", "--json", str(report))
    # 1 is the exit code of a generator that was late on a busy machine.
    assert code in (0, 1), output
    figures = json.loads(report.read_text())
    assert figures["load"]["completed"] > 0
    assert figures["findings"]["leases_left"] == figures["findings"]["failed_reloads"] == 0
    events = " ".join(event for _, event in figures["events"])
    assert "engine 0 was killed" in events
    assert "redis was killed" in events
    assert "the new configuration is in effect" in events
    assert all(sample["uss_mb"] > 10 and sample["descriptors"] > 10 for sample in figures["samples"])
