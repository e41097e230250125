"""A real Prometheus (Debian's package `prometheus`) that scrapes routers, for tests that query what it has.

@needs_prometheus
async def test_something(tmp_path):
    async with PrometheusServer(tmp_path, [router.url]) as prometheus:
        await prometheus.wait_for_scrape()
        assert await prometheus.value("sum(llm_requests_total)") == 3
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest

from tests.support.ports import free_port
from tests.support.waiting import eventually

PROGRAM = shutil.which("prometheus")

needs_prometheus = pytest.mark.skipif(PROGRAM is None, reason="prometheus is not installed")

Sample = tuple[dict[str, str], float]
"""The labels (with `__name__`, if there is one) and the value."""


class PrometheusServer:
    """Prometheus on a free port of 127.0.0.1, with its configuration, data and log in a folder of its own.

    - It scrapes `/metrics` of each target every `scrape_interval`, as the job `roundhouse`.
    - `rule_files` are loaded and evaluated every `evaluation_interval`.
    - It keeps exemplars, and asks for OpenMetrics, as Prometheus does by default.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[str],
        *,
        scrape_interval: str = "200ms",
        evaluation_interval: str = "200ms",
        rule_files: Sequence[Path] = (),
    ) -> None:
        """`targets`: URLs of routers, such as http://127.0.0.1:8080."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "prometheus.log"
        self._folder = folder
        self._targets = [target.partition("://")[2] for target in targets]
        self._config = folder / "prometheus.yml"
        self._config.write_text(
            f"global: {{scrape_interval: {scrape_interval}, evaluation_interval: {evaluation_interval}}}\n"
            f"rule_files: {[str(path) for path in rule_files]}\n"
            f"scrape_configs:\n- {{job_name: roundhouse, static_configs: [{{targets: {self._targets}}}]}}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.AsyncClient(base_url=self.url, timeout=15, trust_env=False)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()
        self.stop()

    async def start(self) -> None:
        """Returns when it answers queries."""
        assert PROGRAM is not None, "prometheus is not installed"
        argv = [
            PROGRAM, f"--config.file={self._config}", f"--storage.tsdb.path={self._folder / 'prometheus-data'}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--enable-feature=exemplar-storage",
        ]  # fmt: skip
        self._process = self._spawn(argv)
        await eventually(self._is_ready)

    def _spawn(self, argv: list[str]) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            return subprocess.Popen(argv, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def stop(self) -> None:
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)  # its data is not needed any more
            self._process.wait()
            self._process = None

    async def query(self, promql: str) -> list[Sample]:
        """The samples of an instant query, now. Raises AssertionError with Prometheus' message if it is invalid."""
        data = await self._get("/api/v1/query", query=promql, time=str(time.time()))
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(sample["metric"], float(sample["value"][1])) for sample in data["result"]]

    async def query_range(
        self, promql: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[float]]]:
        """The labels and the values of each series, between two times in seconds since 1970."""
        times = {"start": str(start), "end": str(end), "step": str(step)}
        data = await self._get("/api/v1/query_range", query=promql, **times)
        return [(series["metric"], [float(value) for _, value in series["values"]]) for series in data["result"]]

    async def value(self, promql: str) -> float | None:
        """The value of a query with one sample; None if it has no sample."""
        samples = await self.query(promql)
        assert len(samples) <= 1, samples
        return samples[0][1] if samples else None

    async def exemplars(self, promql: str) -> list[dict[str, Any]]:
        """The exemplars of the last hour, with their `labels`."""
        now = time.time()
        series = await self._get("/api/v1/query_exemplars", query=promql, start=str(now - 3600), end=str(now + 1))
        return [exemplar for one in series for exemplar in one["exemplars"]]

    async def metric_types(self) -> dict[str, str]:
        """The type of each metric of the targets."""
        return {name: known[0]["type"] for name, known in (await self._get("/api/v1/metadata")).items()}

    async def alerts(self) -> list[dict[str, Any]]:
        alerts: list[dict[str, Any]] = (await self._get("/api/v1/alerts"))["alerts"]
        return alerts

    async def rules(self) -> list[dict[str, Any]]:
        """The groups of rules, with the `health` of each rule."""
        groups: list[dict[str, Any]] = (await self._get("/api/v1/rules"))["groups"]
        return groups

    async def wait_for_scrape(self) -> None:
        """Waits until each target has been scraped with a scrape that began after this call."""
        called_at = time.time()

        async def scraped() -> bool:
            # timestamp() is when a scrape began.
            times = await self.query('timestamp(up{job="roundhouse"} == 1)')
            return len(times) == len(self._targets) and all(at > called_at for _, at in times)

        await eventually(scraped)

    async def _get(self, path: str, **parameters: str) -> Any:
        reply = (await self._client.get(path, params=parameters)).json()
        assert reply["status"] == "success", f"{parameters}: {reply.get('error')}"
        return reply["data"]

    async def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            return (await self._client.get("/-/ready")).status_code == 200
        except httpx.TransportError:
            return False
