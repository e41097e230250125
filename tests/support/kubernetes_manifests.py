"""What the tests of deploy/kubernetes ask of its manifests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from router.settings import Settings, load
from tests.support.kustomization import Manifest, containers, pod_spec
from tests.support.paths import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("single-redis", "sentinel", "cluster", "autoscaled")
ENGINES = ("llama-chat", "llama-code", "mistral")
HASH = "sha256:" + "0" * 64
SECRETS = {
    "roundhouse-router": {"admin-key-hash": HASH, "acme-key-hash": HASH},
    "roundhouse-engines": {"api-key": "engine-key", "hf-token": "token"},
    "roundhouse-redis": {"password": "redis-password"},
}
"""What docs/kubernetes.md lets people create."""


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] in kinds]


def named(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    (manifest,) = [m for m in of_kind(manifests, kind) if m["metadata"]["name"] == name]
    return manifest


def container(manifests: list[Manifest], name: str, workload: str) -> Manifest:
    (found,) = [c for owner, _, c in containers(manifests) if (c["name"], owner) == (name, workload)]
    return found


def environment(container: Manifest, **fields: str) -> dict[str, str]:
    """The environment of a container with the secrets of the docs. `fields`: of the pod, such as metadata_name."""
    values: dict[str, str] = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = SECRETS[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"].replace(".", "_")]
        else:
            value = re.sub(r"\$\(([A-Z_]+)\)", lambda match: values[match[1]], variable["value"])
        values[variable["name"]] = value
    return values


def settings_of(manifests: list[Manifest], folder: Path) -> Settings:
    """The routers' settings, from the ConfigMap that their pods mount and the environment that they get."""
    (volume,) = [v for v in pod_spec(named(manifests, "Deployment", "router"))["volumes"] if v["name"] == "config"]
    path = folder / "roundhouse.toml"
    path.write_text(named(manifests, "ConfigMap", volume["configMap"]["name"])["data"]["roundhouse.toml"])
    return load(path, environment(container(manifests, "router", "router")))


def labels_of_pods(manifests: list[Manifest]) -> dict[str, dict[str, str]]:
    """The labels of the pods of each workload."""
    workloads = of_kind(manifests, "Deployment", "StatefulSet")
    return {workload["metadata"]["name"]: workload["spec"]["template"]["metadata"]["labels"] for workload in workloads}


def selected(selector: Manifest, manifests: list[Manifest]) -> set[str]:
    """The workloads whose pods a selector of labels matches."""
    wanted = selector.get("matchLabels", {}) if set(selector) <= {"matchLabels", "matchExpressions"} else selector
    several = {each["key"]: each["values"] for each in selector.get("matchExpressions", [])}
    return {
        name
        for name, labels in labels_of_pods(manifests).items()
        if wanted.items() <= labels.items() and all(labels.get(key) in values for key, values in several.items())
    }


def seconds(probe: Manifest) -> int:
    """How long a probe fails until it has an effect."""
    period: int = probe["periodSeconds"]
    failures: int = probe["failureThreshold"]
    return period * failures


def allowed(manifests: list[Manifest]) -> Iterator[tuple[str, set[str], str, Any]]:
    """(direction, pods, peer, port) of each rule; the peer is a workload of the namespace or a description."""
    for policy in of_kind(manifests, "NetworkPolicy"):
        pods = selected(policy["spec"]["podSelector"], manifests)
        for direction, key in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, []):
                assert rule[key], "an empty list allows everyone"
                for peer in rule[key]:
                    for port in rule["ports"]:
                        if set(peer) == {"podSelector"}:
                            peers = selected(peer["podSelector"], manifests)
                            assert peers, f"{policy['metadata']['name']} names pods that do not exist"
                        else:
                            peers = {json.dumps(peer, sort_keys=True)}
                        for each in peers:
                            yield direction, pods, each, port["port"]
