"""What is in the wheels and the source distributions, and what is not."""

import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Final

from tests.support.built_distributions import EPOCH, Distributions
from tests.support.paths import ROOT
from tools.wheels.distributions import Builder

WHEEL_FOLDERS: Final = {"router", "engines", "roundhouse_router-0.1.0.dist-info"}
WHEEL_SUFFIXES: Final = {".py", ".typed", ".json", ".html", ".css", ".js", ".svg"}
SDIST_FOLDERS: Final = {"router", "engines", "roundhouse_router.egg-info"}
SDIST_FILES: Final = {
    "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", "setup.cfg",
    "setup.py",
}  # fmt: skip


def in_wheel(wheel: Path) -> list[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return [PurePosixPath(name) for name in archive.namelist()]


def in_sdist(sdist: Path) -> list[PurePosixPath]:
    """The files, without the folder that all of them are in."""
    with tarfile.open(sdist) as archive:
        return [PurePosixPath(*PurePosixPath(member.name).parts[1:]) for member in archive if member.isfile()]


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(archive.read(name).decode())


def sources(*folders: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for folder in folders for path in (ROOT / folder).rglob("*.py")}


def is_simulated(name: PurePosixPath | str) -> bool:
    return PurePosixPath(name).parts[:2] in {("engines", "simulator"), ("engines", "tiny")}


def test_the_wheel_of_the_router_has_only_the_two_packages(distributions: Distributions) -> None:
    files = in_wheel(distributions.router)
    assert {file.parts[0] for file in files} == WHEEL_FOLDERS
    assert {file.suffix for file in files if not file.parts[0].endswith(".dist-info")} <= WHEEL_SUFFIXES
    assert distributions.router.name == "roundhouse_router-0.1.0-py3-none-any.whl"


def test_the_wheel_of_the_router_has_every_module_but_the_simulator_and_the_small_models(
    distributions: Distributions,
) -> None:
    modules = {str(file) for file in in_wheel(distributions.router) if file.suffix == ".py"}
    assert modules == {name for name in sources("router", "engines") if not is_simulated(name)}


def test_the_wheel_of_the_router_has_its_data(distributions: Distributions) -> None:
    files = {str(file) for file in in_wheel(distributions.router)}
    data = [path for folder in ("templates", "static") for path in (ROOT / "router/dashboard" / folder).iterdir()]
    data += (ROOT / "router/core/routing").glob("*.json")
    assert len(data) > 30
    assert {str(path.relative_to(ROOT)) for path in data} <= files
    assert {"router/py.typed", "engines/py.typed"} <= files
    assert "roundhouse_router-0.1.0.dist-info/licenses/LICENSE" in files


def test_the_wheel_of_the_simulator_has_only_the_simulator_and_the_small_models(distributions: Distributions) -> None:
    files = [file for file in in_wheel(distributions.simulator) if not file.parts[0].endswith(".dist-info")]
    assert {str(file) for file in files} == {
        *(name for name in sources("engines") if is_simulated(name)),
        "engines/tiny/roundhouse.toml",
    }


def test_no_file_belongs_to_both_wheels(distributions: Distributions) -> None:
    # Otherwise, to uninstall one would break the other.
    assert not set(in_wheel(distributions.router)) & set(in_wheel(distributions.simulator))


def test_the_source_distributions_have_what_the_wheels_are_built_from(distributions: Distributions) -> None:
    files = in_sdist(distributions.router_sdist)
    assert {file.parts[0] for file in files if len(file.parts) > 1} == SDIST_FOLDERS
    assert {str(file) for file in files if len(file.parts) == 1} == SDIST_FILES
    for sdist, wheel in (
        (files, distributions.router),
        (in_sdist(distributions.simulator_sdist), distributions.simulator),
    ):
        packaged = {file for file in in_wheel(wheel) if not file.parts[0].endswith(".dist-info")}
        assert packaged == {file for file in sdist if file.parts[0] in ("router", "engines")}


def test_the_metadata_name_license_description_and_the_simulator_of_the_same_version(
    distributions: Distributions,
) -> None:
    router, simulator = metadata(distributions.router), metadata(distributions.simulator)
    assert (router["Name"], simulator["Name"]) == ("roundhouse-router", "roundhouse-simulator")
    version = router["Version"]
    assert simulator["Version"] == version
    assert f'roundhouse-simulator=={version}; extra == "simulator"' in router.get_all("Requires-Dist", [])
    assert f"roundhouse-router=={version}" in simulator.get_all("Requires-Dist", [])
    for each in (router, simulator):
        assert each["License-Expression"] == "Apache-2.0"
        assert each["Description-Content-Type"] == "text/markdown"
        assert each["Requires-Python"] == ">=3.11"
        assert str(each.get_payload()).startswith("# ")


def test_no_wheel_needs_another_release_of_a_library_than_the_pinned_one(distributions: Distributions) -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for wheel in (distributions.router, distributions.simulator):
        for requirement in metadata(wheel).get_all("Requires-Dist", []):
            name = re.split(r"[\[<>=!~; ]", requirement)[0]
            if "extra ==" not in requirement and not name.startswith("roundhouse-"):
                assert name in pinned, requirement


def test_the_same_sources_give_the_same_bytes(distributions: Distributions, tmp_path: Path) -> None:
    again = Builder(Path(sys.executable), tmp_path, tmp_path, EPOCH).build_pure_wheel(
        distributions.router_sdist, tmp_path / "work"
    )
    assert again.read_bytes() == distributions.router.read_bytes()
