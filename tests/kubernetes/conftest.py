"""The manifests of each overlay of deploy/kubernetes."""

import pytest

from tests.support.kubernetes_manifests import FOLDER, OVERLAYS
from tests.support.kustomization import Manifest, build


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def manifests(overlay: str) -> list[Manifest]:
    return build(FOLDER / "overlays" / overlay)


@pytest.fixture(scope="module")
def autoscaled() -> list[Manifest]:
    return build(FOLDER / "overlays" / "autoscaled")
