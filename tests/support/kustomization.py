"""Builds a kustomization as `kubectl kustomize` does, for the features that deploy/kubernetes uses; refuses others.

Source: https://kubectl.docs.kubernetes.io/references/kustomize/kustomization/. Where kubectl is installed,
test_kubernetes.py compares the two.
"""

import copy
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.unique_keys import load_all

Manifest = dict[str, Any]

_KNOWN: Final = {
    "apiVersion", "kind", "namespace", "resources", "components", "configMapGenerator", "patches",
}  # fmt: skip
_CLUSTER_WIDE: Final = {"Namespace"}


def build(folder: Path) -> list[Manifest]:
    """The manifests of an overlay. Raises AssertionError for a feature that this does not know."""
    manifests, generated = _accumulate(folder)
    names = {name: f"{name}-{_hash(data)}" for name, data in generated.items()}
    namespace = _read(folder)["namespace"]
    for name, data in generated.items():
        manifests.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": names[name]}, "data": data})
    for manifest in manifests:
        if manifest["kind"] not in _CLUSTER_WIDE:
            manifest["metadata"]["namespace"] = namespace
        for volume in pod_spec(manifest).get("volumes", []):
            if "configMap" in volume:
                volume["configMap"]["name"] = names[volume["configMap"]["name"]]
    return manifests


def pod_spec(manifest: Manifest) -> Manifest:
    """The spec of the pods that a Deployment or StatefulSet creates; empty for other kinds."""
    template: Manifest = manifest.get("spec", {}).get("template", {})
    spec: Manifest = template.get("spec", {})
    return spec


def _accumulate(folder: Path) -> tuple[list[Manifest], dict[str, dict[str, str]]]:
    """The manifests of a folder and what it refers to, and the data of its generated ConfigMaps by name."""
    kustomization = _read(folder)
    manifests: list[Manifest] = []
    generated: dict[str, dict[str, str]] = {}
    for name in kustomization.get("resources", []):
        path = (folder / name).resolve()
        if path.is_dir():
            inner, inner_generated = _accumulate(path)
            manifests += inner
            generated |= inner_generated
        else:
            manifests += load_all(path.read_text())
    _generate(kustomization, folder, generated)
    for name in kustomization.get("components", []):
        _add_component((folder / name).resolve(), manifests, generated)
    _patch(kustomization, folder, manifests)
    return manifests, generated


def _add_component(folder: Path, manifests: list[Manifest], generated: dict[str, dict[str, str]]) -> None:
    """A component changes what was accumulated before it."""
    kustomization = _read(folder)
    assert kustomization["kind"] == "Component"
    for name in kustomization.get("resources", []):
        manifests += load_all((folder / name).read_text())
    _generate(kustomization, folder, generated)
    _patch(kustomization, folder, manifests)


def _read(folder: Path) -> Manifest:
    (kustomization,) = load_all((folder / "kustomization.yaml").read_text())
    assert not set(kustomization) - _KNOWN, f"{folder}: not known here: {set(kustomization) - _KNOWN}"
    return kustomization


def _generate(kustomization: Manifest, folder: Path, generated: dict[str, dict[str, str]]) -> None:
    for generator in kustomization.get("configMapGenerator", []):
        name, replaces = generator["name"], generator.get("behavior") == "replace"
        assert (name in generated) is replaces, f"{folder}: {name}"
        pairs = [file.partition("=") for file in generator["files"]]
        generated[name] = {
            (key if equals_sign else Path(key).name): (folder / (path or key)).read_text()
            for key, equals_sign, path in pairs
        }


def _patch(kustomization: Manifest, folder: Path, manifests: list[Manifest]) -> None:
    for patch in kustomization.get("patches", []):
        operations = yaml.safe_load((folder / patch["path"]).read_text())
        targets = [manifest for manifest in manifests if _is_target(manifest, patch["target"])]
        assert targets, f"{folder}: {patch['path']} has no target"
        for target in targets:
            for operation in operations:
                _apply(operation, target)


def _is_target(manifest: Manifest, target: Manifest) -> bool:
    label, _, value = target.get("labelSelector", "").partition("=")
    return (
        manifest["kind"] == target["kind"]
        and target.get("name", manifest["metadata"]["name"]) == manifest["metadata"]["name"]
        and (not label or manifest["metadata"].get("labels", {}).get(label) == value)
    )


def _apply(operation: Manifest, manifest: Manifest) -> None:
    """An operation of JSON Patch (RFC 6902). Raises KeyError and IndexError where its path does not exist."""
    *parents, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
    place: Any = manifest
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    index: Any = int(last) if isinstance(place, list) and last != "-" else last
    match operation["op"]:
        case "test":
            assert place[index] == operation["value"], operation
        case "remove":
            del place[index]
        case "replace":
            assert place[index] is not None
            place[index] = copy.deepcopy(operation["value"])
        case "add" if last == "-":
            place.append(copy.deepcopy(operation["value"]))
        case "add" if isinstance(place, dict):
            place[last] = copy.deepcopy(operation["value"])
        case _:
            raise AssertionError(operation)


def _hash(data: dict[str, str]) -> str:
    """The suffix of a generated name: part of a SHA-256 in an alphabet that spells no words.

    kustomize leaves the name empty.
    """
    config_map = {"data": data, "kind": "ConfigMap", "name": ""}
    body = json.dumps(config_map, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    # Go's encoder escapes what has a meaning in HTML.
    escaped = body.translate({ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"})
    digits = hashlib.sha256(escaped.encode()).hexdigest()[:10]
    return digits.translate(str.maketrans("013ae", "ghkmt"))


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    """The workload's name, its pods' spec and the container, of each container."""
    for manifest in manifests:
        spec = pod_spec(manifest)
        for container in spec.get("initContainers", []) + spec.get("containers", []):
            yield manifest["metadata"]["name"], spec, container
