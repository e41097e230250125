"""An S3 for a test, in the environment of its processes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.object_store import ObjectStore


@pytest.fixture
def object_store(monkeypatch: pytest.MonkeyPatch) -> "Iterator[ObjectStore]":
    from tests.support.object_store import run_object_store  # moto takes a second to import

    with run_object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        yield store
