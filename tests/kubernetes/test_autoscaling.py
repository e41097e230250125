"""deploy/kubernetes: engines that announce themselves, and come and go with the requests."""

import re
from pathlib import Path

import msgspec
import pytest
import yaml

from router.settings import load
from tests.support.kubernetes_manifests import ENGINES, container, environment, of_kind, seconds, settings_of
from tests.support.kustomization import Manifest
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", ENGINES)
def test_a_pod_announces_the_engine_that_the_routers_know(
    autoscaled: list[Manifest], name: str, tmp_path: Path
) -> None:
    announcer = container(autoscaled, "announcer", name)
    path = tmp_path / "roundhouse.toml"
    (config,) = [m for m in of_kind(autoscaled, "ConfigMap") if m["metadata"]["name"].startswith("announce-")]
    path.write_text(config["data"]["roundhouse.toml"])
    variables = environment(announcer, metadata_name=f"{name}-3", status_podIP="10.1.2.3")
    announced = load(path, variables)
    routers = settings_of(autoscaled, tmp_path)
    (engine,) = announced.engine
    (known,) = [each for each in routers.engine if each.name == f"{name}-0"]
    assert list(engine.addresses) == ["http://10.1.2.3:8000"]
    assert engine == msgspec.structs.replace(known, name=f"{name}-3", url=engine.url)
    assert announced.cache.url == routers.cache.url
    assert announcer["command"][1:3] == ["engines", "announce"]


def test_queries_name_documented_metrics_and_existing_engines(autoscaled: list[Manifest], tmp_path: Path) -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE))
    settings = settings_of(autoscaled, tmp_path)
    for scaled in of_kind(autoscaled, "ScaledObject"):
        queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
        for query in queries:
            assert query.count("(") == query.count(")")
            metrics = re.findall(r"(\w+)\{", query)
            assert metrics
            assert set(metrics) <= documented
        name = scaled["spec"]["scaleTargetRef"]["name"]
        (engine,) = [each for each in settings.engine if each.name == f"{name}-0"]
        (pattern,) = re.findall(r'engine=~"([^"]+)"', queries[0])
        assert re.fullmatch(pattern, engine.name)
        assert set(re.findall(r'model="([^"]+)"', "".join(queries))) == {engine.model}
        assert int(scaled["spec"]["triggers"][0]["metadata"]["threshold"]) < (engine.max_in_flight or 0)


def test_a_scaled_object_has_the_shape_of_keda(autoscaled: list[Manifest]) -> None:
    for scaled in of_kind(autoscaled, "ScaledObject"):
        spec = scaled["spec"]
        assert scaled["apiVersion"] == "keda.sh/v1alpha1"
        assert spec.keys() - {"initialCooldownPeriod"} == {
            "scaleTargetRef", "minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod", "advanced",
            "triggers",
        }  # fmt: skip
        assert 0 <= spec["minReplicaCount"] < spec["maxReplicaCount"]
        for trigger in spec["triggers"]:
            assert trigger.keys() == {"type", "metricType", "metadata"}
            assert trigger["metadata"].keys() == {"serverAddress", "query", "threshold", "activationThreshold"}
            assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_a_model_that_may_have_no_engine_has_a_fallback_that_always_has_one(
    autoscaled: list[Manifest], tmp_path: Path
) -> None:
    settings = settings_of(autoscaled, tmp_path)
    least = {m["metadata"]["name"]: m["spec"]["minReplicaCount"] for m in of_kind(autoscaled, "ScaledObject")}
    always = {engine.model for engine in settings.engine if least[engine.name.removesuffix("-0")] > 0}
    assert always != {model.name for model in settings.model}
    for model in settings.model:
        assert model.name in always or model.fallback in always


def test_requests_wait_for_the_engine_of_a_model_that_may_have_none(autoscaled: list[Manifest], tmp_path: Path) -> None:
    settings = settings_of(autoscaled, tmp_path)
    for scaled in of_kind(autoscaled, "ScaledObject"):
        (engine,) = [each for each in settings.engine if each.name == f"{scaled['metadata']['name']}-0"]
        (model,) = [each for each in settings.model if each.name == engine.model]
        assert (model.wake is not None) is (scaled["spec"]["minReplicaCount"] == 0)
        if model.wake is not None:
            # A start must not be taken back while requests still wait for it.
            assert scaled["spec"]["cooldownPeriod"] >= model.wake


def test_the_first_start_of_an_engine_that_may_stop_has_the_time_to_download_the_weights(
    autoscaled: list[Manifest],
) -> None:
    for scaled in of_kind(autoscaled, "ScaledObject"):
        if scaled["spec"]["minReplicaCount"] == 0:
            vllm = container(autoscaled, "vllm", scaled["spec"]["scaleTargetRef"]["name"])
            # KEDA stops a pod that it has not started itself once this is over, without a cooldown.
            assert scaled["spec"]["initialCooldownPeriod"] >= seconds(vllm["startupProbe"])


def test_prometheus_finds_the_routers_as_the_job_of_the_rules(autoscaled: list[Manifest]) -> None:
    (monitor,) = of_kind(autoscaled, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [m for m in of_kind(autoscaled, "Service") if wanted <= m["metadata"]["labels"].items()]
    assert service["metadata"]["name"] == "roundhouse"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (service["spec"]["ports"][0]["name"], "/metrics")


def test_the_rules_are_those_of_deploy_prometheus(autoscaled: list[Manifest]) -> None:
    (rule,) = of_kind(autoscaled, "PrometheusRule")
    files = [ROOT / "deploy" / "prometheus" / f"{name}.rules.yml" for name in ("recording", "alerts")]
    assert rule["spec"]["groups"] == [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]
