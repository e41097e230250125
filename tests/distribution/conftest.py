from pathlib import Path

import pytest

from tests.support.built_distributions import Distributions, build_distributions


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    folder: Path = tmp_path_factory.mktemp("distributions")
    return build_distributions(folder)
