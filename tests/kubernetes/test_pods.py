"""deploy/kubernetes: pods are hardened, and their probes, resources and grace periods fit."""

import re
from pathlib import Path

import yaml

from router.shared.engines.announcements import RENEWAL_INTERVAL
from tests.support.compose_file import options
from tests.support.kubernetes_manifests import ENGINES, container, named, of_kind, seconds, settings_of
from tests.support.kustomization import Manifest, containers, pod_spec
from tests.support.paths import ROOT


def test_pods_are_hardened(manifests: list[Manifest]) -> None:
    (namespace,) = of_kind(manifests, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for _, spec, each in containers(manifests):
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        pod, own = spec["securityContext"], each["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert own.get("runAsUser", pod["runAsUser"]) > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        assert own.keys() <= {
            "allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities", "runAsUser", "runAsGroup",
        }  # fmt: skip
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        assert not any("hostPath" in volume for volume in spec["volumes"])


def test_the_users_are_those_of_the_images(manifests: list[Manifest]) -> None:
    (uid,) = re.findall(r"--uid (\d+)", (ROOT / "Dockerfile").read_text())
    for _, spec, each in containers(manifests):
        if each["image"].startswith("roundhouse:"):
            context = {**spec["securityContext"], **each["securityContext"]}
            assert (context["runAsUser"], context["runAsGroup"]) == (int(uid), int(uid))


def test_images_are_pinned(manifests: list[Manifest]) -> None:
    for _, _, each in containers(manifests):
        assert re.search(r":v?\d+\.\d+", each["image"]), each["image"]


def test_images_are_those_of_compose(manifests: list[Manifest]) -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"].values()
    known = {service["image"] for service in services}
    assert {each["image"] for _, _, each in containers(manifests)} <= known


def test_every_container_has_requests_and_a_memory_limit(manifests: list[Manifest]) -> None:
    for _, _, each in containers(manifests):
        requests, limits = each["resources"]["requests"], each["resources"]["limits"]
        assert {"cpu", "memory"} <= requests.keys()
        assert "memory" in limits
        assert requests.get("nvidia.com/gpu") == limits.get("nvidia.com/gpu")
        if each["name"] == "vllm":
            assert limits["nvidia.com/gpu"] == "1"


def test_probes_use_a_port_of_the_container(manifests: list[Manifest]) -> None:
    for _, _, each in containers(manifests):
        probes = [each.get(f"{name}Probe") for name in ("startup", "readiness", "liveness")]
        if "ports" not in each:
            assert probes == [None] * 3
            continue
        for probe in probes:
            assert probe is not None
            assert probe["timeoutSeconds"] <= probe["periodSeconds"]
            if "httpGet" in probe:
                assert probe["httpGet"]["port"] in {port["name"] for port in each["ports"]}


def test_a_router_is_not_restarted_or_removed_because_engines_are_down(manifests: list[Manifest]) -> None:
    router = container(manifests, "router", "router")
    assert router["livenessProbe"]["httpGet"]["path"] == "/health"
    assert router["readinessProbe"]["httpGet"]["path"] == "/health"
    assert router["startupProbe"]["httpGet"]["path"] == "/readyz"


def test_an_engine_has_an_hour_to_load_and_a_minute_to_hang(manifests: list[Manifest]) -> None:
    for name in ENGINES:
        vllm = container(manifests, "vllm", name)
        assert seconds(vllm["startupProbe"]) >= 45 * 60
        assert seconds(vllm["livenessProbe"]) >= 60


def test_a_new_router_may_wait_for_the_first_start_of_engines(manifests: list[Manifest]) -> None:
    waits = seconds(container(manifests, "router", "router")["startupProbe"])
    assert waits >= max(seconds(container(manifests, "vllm", name)["startupProbe"]) for name in ENGINES)
    assert named(manifests, "Deployment", "router")["spec"]["progressDeadlineSeconds"] > waits


def test_grace_periods_agree_with_the_configuration(manifests: list[Manifest], tmp_path: Path) -> None:
    router = pod_spec(named(manifests, "Deployment", "router"))
    settings = settings_of(manifests, tmp_path).router
    assert router["terminationGracePeriodSeconds"] == settings.drain + settings.grace + 5
    assert "lifecycle" not in router["containers"][0], "a preStop takes its time from the grace period"
    assert settings.drain >= seconds(router["containers"][0]["readinessProbe"])


def test_vllm_has_the_time_that_it_takes_to_stop(overlay: str, manifests: list[Manifest]) -> None:
    for name in ENGINES:
        spec = pod_spec(named(manifests, "StatefulSet", name))
        vllm = container(manifests, "vllm", name)
        timeout = int(options(vllm["args"]).get("--shutdown-timeout") or 0)
        waits = vllm.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert spec["terminationGracePeriodSeconds"] >= waits + timeout + 30
        # A vLLM that stops slowly answers new requests with 500 and /health with 200: routers must know it before, so
        # only engines that withdraw themselves may.
        assert (timeout > 0) is (waits >= 2 * RENEWAL_INTERVAL) is (overlay == "autoscaled")
    for _, _, each in containers(manifests):
        assert each["name"] == "vllm" or "lifecycle" not in each
