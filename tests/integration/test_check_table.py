"""The table of docs/check.md is true: each configuration is broken in earnest, and `check` says what its row says."""

import re
from collections.abc import AsyncIterator
from itertools import takewhile
from typing import Final

import pytest
import pytest_asyncio

from router.checks.check import check_all
from router.checks.finding import Finding
from router.settings import parse
from tests.support.broken_configurations import BROKEN, BrokenWorld
from tests.support.paths import ROOT
from tests.support.redis_deployments import unavailable_reason
from tests.support.router_server import EngineSet
from tests.support.waiting import TEST_TIMEOUT

WITHOUT_TLS: Final = unavailable_reason("tls")

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(WITHOUT_TLS is not None, reason=str(WITHOUT_TLS)),
]


def rows() -> dict[str, str]:
    """The other columns, by the first one."""
    page = (ROOT / "docs/check.md").read_text(encoding="utf-8")
    lines = page.partition("| what is wrong |")[2].splitlines()[2:]
    cells = (line.removeprefix("| ").removesuffix(" |").split(" | ") for line in takewhile(str.strip, lines))
    return {first: " | ".join(others) for first, *others in cells}


TABLE: Final = rows()
SILENT: Final = "the URL has TLS, Redis has not"
"""The row whose server never replies, so that its check takes the whole timeout."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(running_engines: EngineSet, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[BrokenWorld]:
    async with BrokenWorld(running_engines, tmp_path_factory.mktemp("broken")) as world:
        yield world


def row(finding: Finding) -> str:
    """A finding as a row of the table; what differs between runs is as in the table."""
    cells = (finding.level, f"{finding.what}: {finding.note}", finding.setting or "", finding.fix or "")
    text = " | ".join(cell.replace("|", "\\|") for cell in cells)
    return re.sub(r"\((self[- ]signed|unable)[^)]*\)", "(…)", re.sub(r"(:|port |= :)\d{4,5}\b", r"\1PORT", text))


async def test_each_row_has_its_configuration_and_the_reverse() -> None:
    assert TABLE.keys() == BROKEN.keys()


@pytest.mark.parametrize("name", BROKEN)
async def test_check_says_what_the_table_says(world: BrokenWorld, name: str) -> None:
    findings = await check_all(parse(BROKEN[name](world), {}), timeout=2 if name == SILENT else TEST_TIMEOUT)
    assert TABLE.get(name) in [row(finding) for finding in findings]
