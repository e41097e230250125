"""deploy/kubernetes: kubectl builds it, and it satisfies the schemas."""

import shutil
import subprocess

import pytest
import yaml

from tests.support.kubernetes_manifests import FOLDER
from tests.support.kustomization import Manifest
from tests.support.unique_keys import load_all


def test_kubectl_builds_the_same_manifests(overlay: str, manifests: list[Manifest]) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed here; the other tests use a build of their own")
    command = [kubectl, "kustomize", str(FOLDER / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def order(manifest: Manifest) -> tuple[str, str]:
        return manifest["kind"], manifest["metadata"]["name"]

    theirs = yaml.load_all(done.stdout, Loader=yaml.CSafeLoader)
    assert sorted(theirs, key=order) == sorted(manifests, key=order)


def test_the_manifests_satisfy_the_schemas_of_a_released_kubernetes(manifests: list[Manifest]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate==1.37.0")
    for manifest in manifests:
        if manifest["kind"] not in ("ScaledObject", "ServiceMonitor", "PrometheusRule"):
            for version in ("1.34", "1.37"):
                kubernetes_validate.validate(manifest, version, strict=True)


def test_a_repeated_key_is_found() -> None:
    with pytest.raises(yaml.YAMLError, match="twice"):
        load_all("kind: Service\nkind: Secret\n")
