"""deploy/kubernetes: what a manifest names is there."""

import re

from tests.support.kubernetes_manifests import FOLDER, SECRETS, named, of_kind, selected
from tests.support.kustomization import Manifest, containers, pod_spec
from tests.support.paths import ROOT


def test_no_two_manifests_have_the_same_name(manifests: list[Manifest]) -> None:
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(names)) == len(names)
    assert {m["metadata"].get("namespace") for m in manifests if m["kind"] != "Namespace"} == {"roundhouse"}
    assert [m["metadata"]["name"] for m in of_kind(manifests, "Namespace")] == ["roundhouse"]


def test_every_secret_that_a_pod_needs_is_one_of_the_docs(manifests: list[Manifest]) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for _, _, each in containers(manifests):
        for variable in each.get("env", []):
            if reference := variable.get("valueFrom", {}).get("secretKeyRef"):
                assert reference["key"] in SECRETS[reference["name"]]
                assert f"generic {reference['name']} " in page
                assert f"--from-literal={reference['key']}=" in page


def test_no_secret_is_in_the_files() -> None:
    for path in FOLDER.rglob("*"):
        if path.is_file():
            assert not re.search(r"hf_\w{20}|sha256:[0-9a-f]{64}|rh-\w{20}|kind: Secret", path.read_text()), path


def test_every_config_map_and_volume_that_a_pod_mounts_is_defined(manifests: list[Manifest]) -> None:
    config_maps = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "ConfigMap")}
    used = set()
    for workload in of_kind(manifests, "Deployment", "StatefulSet"):
        spec = pod_spec(workload)
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        volumes = {volume["name"] for volume in spec["volumes"]}
        mounted = {mount["name"] for each in spec["containers"] for mount in each["volumeMounts"]}
        assert mounted == claims | volumes
        used |= {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
    assert used == config_maps


def test_selectors_find_their_pods_and_ports(manifests: list[Manifest]) -> None:
    workloads = {m["metadata"]["name"]: m for m in of_kind(manifests, "Deployment", "StatefulSet")}
    for name, workload in workloads.items():
        assert selected(workload["spec"]["selector"], manifests) == {name}
    for service in of_kind(manifests, "Service"):
        (name,) = selected(service["spec"]["selector"], manifests)
        ports = {port["name"] for each in pod_spec(workloads[name])["containers"] for port in each.get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for workload in of_kind(manifests, "StatefulSet"):
        assert selected(
            named(manifests, "Service", workload["spec"]["serviceName"])["spec"]["selector"], manifests
        ) == {workload["metadata"]["name"]}
    (budget,) = of_kind(manifests, "PodDisruptionBudget")
    assert selected(budget["spec"]["selector"], manifests) == {"router"}
    for constraint in pod_spec(workloads["router"])["topologySpreadConstraints"]:
        assert selected(constraint["labelSelector"], manifests) == {"router"}


def test_autoscalers_have_their_targets_alone(manifests: list[Manifest]) -> None:
    targets = []
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler", "ScaledObject"):
        target = scaler["spec"]["scaleTargetRef"]
        workload = named(manifests, target["kind"], target["name"])
        assert workload["apiVersion"] == target["apiVersion"]
        assert "replicas" not in workload["spec"], "each `kubectl apply` would set them"
        targets.append(target["name"])
    assert len(set(targets)) == len(targets)
    (scaler,) = of_kind(manifests, "HorizontalPodAutoscaler")
    assert 2 <= scaler["spec"]["minReplicas"] < scaler["spec"]["maxReplicas"]
