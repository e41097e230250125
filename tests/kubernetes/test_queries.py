"""deploy/kubernetes: what KEDA's queries return, by promtool."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.kubernetes_manifests import of_kind
from tests.support.kustomization import Manifest

PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")

ROUTERS = ("10.0.0.1:8080", "10.0.0.2:8080")


def series(metric: str, values: str, router: str = ROUTERS[0], **labels: str) -> dict[str, str]:
    """Samples of a metric every 15 seconds, `_` for none, as the Prometheus operator labels them."""
    every = {"namespace": "roundhouse", "job": "roundhouse", "instance": router, **labels}
    selector = ", ".join(f'{name}="{value}"' for name, value in every.items())
    return {"series": f"{metric}{{{selector}}}", "values": values}


def queries(manifests: list[Manifest], name: str) -> list[str]:
    (scaled,) = [each for each in of_kind(manifests, "ScaledObject") if each["metadata"]["name"] == name]
    return [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]


def check(folder: Path, query: str, samples: list[dict[str, str]], expected: dict[str, float]) -> None:
    """`expected`: the query's value by time, such as `2m`."""
    tests = [
        {"expr": query, "eval_time": time, "exp_samples": [{"labels": "{}", "value": value}]}
        for time, value in expected.items()
    ]
    content: dict[str, Any] = {
        "rule_files": [],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": samples, "promql_expr_test": tests}],
    }
    path = folder / "queries.test.yml"
    path.write_text(yaml.safe_dump(content))
    done = subprocess.run([PROMTOOL or "", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["llama-chat", "llama-code", "mistral"])
def test_an_engine_is_scaled_by_what_runs_at_it_and_waits_for_its_model(
    autoscaled: list[Manifest], tmp_path: Path, name: str
) -> None:
    model = name.partition("-")[0]
    samples = [
        series("llm_requests_in_flight", "10x40", engine=f"{name}-0"),
        series("llm_requests_in_flight", "20x40", ROUTERS[1], engine=f"{name}-0"),
        series("llm_requests_in_flight", "40x40", engine=f"{name}-11"),
        series("llm_requests_in_flight", "1000x40", engine="another-0"),
        series("llm_requests_queued", "100x40", model=model),
        series("llm_requests_queued", "200x40", ROUTERS[1], model=model),
        series("llm_requests_queued", "5000x40", model="another"),
    ]
    check(tmp_path, queries(autoscaled, name)[0], samples, {"5m": 370})


def test_a_model_without_requests_has_no_engine(autoscaled: list[Manifest], tmp_path: Path) -> None:
    for query in queries(autoscaled, "mistral"):
        check(tmp_path, query, [], {"5m": 0})


def test_one_request_that_waits_activates_an_engine(autoscaled: list[Manifest], tmp_path: Path) -> None:
    query = queries(autoscaled, "mistral")[0]
    check(tmp_path, query, [series("llm_requests_queued", "0x11 1x40", model="mistral")], {"2m30s": 0, "3m": 1})


def test_the_first_request_wakes_an_engine_for_two_minutes(autoscaled: list[Manifest], tmp_path: Path) -> None:
    _, wake = queries(autoscaled, "mistral")
    # No sample before 2m45s, then a counter that begins with 1.
    for first in (
        series("llm_fallbacks_total", "_x11 1x40", model="mistral", fallback="llama"),
        series("llm_requests_total", "_x11 1x40", model="mistral", engine="none", status="503"),
    ):
        check(tmp_path, wake, [first], {"2m30s": 0, "2m45s": 1, "4m30s": 1, "4m45s": 0})


def test_other_requests_and_a_router_that_restarts_wake_nothing(autoscaled: list[Manifest], tmp_path: Path) -> None:
    _, wake = queries(autoscaled, "mistral")
    samples = [
        series("llm_fallbacks_total", "7x10 0x40", model="mistral", fallback="llama"),
        series("llm_requests_total", "0+1x50", model="mistral", engine="mistral-0", status="200"),
        series("llm_requests_total", "0+1x50", model="llama", engine="none", status="503"),
    ]
    check(tmp_path, wake, samples, {"2m30s": 0, "3m": 0, "6m": 0})
