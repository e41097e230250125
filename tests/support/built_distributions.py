"""The distributions of this repository, built without compilation, and an environment to install them into."""

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT
from tools.wheels.distributions import SIMULATOR, Builder, copy_sources

EPOCH: Final = 1_700_000_000
"""The time of all files in the wheels, Unix time in seconds."""

_DEPENDENCIES: Final = "dependencies.pth"


@dataclass(frozen=True)
class Distributions:
    """Paths of the built files."""

    router: Path
    router_sdist: Path
    simulator: Path
    simulator_sdist: Path


def build_distributions(folder: Path) -> Distributions:
    """Builds in this folder, with the setuptools of the environment that runs the tests."""
    (out := folder / "dist").mkdir(parents=True)
    copy_sources(ROOT, folder / "source")
    builder = Builder(Path(sys.executable), folder / "source", out, EPOCH)
    router, simulator = builder.build_sdist(), builder.build_sdist(SIMULATOR)
    return Distributions(
        router=builder.build_pure_wheel(router, folder / "router"),
        router_sdist=router,
        simulator=builder.build_pure_wheel(simulator, folder / "simulator"),
        simulator_sdist=simulator,
    )


class Environment:
    """A virtual environment of its own, which finds the dependencies where the tests find them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.roundhouse = folder / "bin" / "roundhouse"
        self.site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
        venv.create(folder, symlinks=True)

    def install(self, *wheels: Path) -> None:
        self._pip("install", "--no-index", "--no-deps", "--no-compile", "--force-reinstall", *wheels)

    def uninstall(self, name: str) -> None:
        self._pip("uninstall", "--yes", name)

    def run(self, *command: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.command(*command), capture_output=True, text=True, check=False, timeout=60)

    def command(self, *command: str | Path) -> list[str]:
        """As it runs outside of the checkout, which the current folder and PYTHONPATH may add to the import path."""
        return ["/bin/sh", "-c", 'unset PYTHONPATH; cd "$0" && exec "$@"', str(self.folder), *map(str, command)]

    def _pip(self, *arguments: str | Path) -> None:
        dependencies = self.site_packages / _DEPENDENCIES
        # Not while pip runs: it would take the router of the tests' environment for the installed one.
        dependencies.unlink(missing_ok=True)
        pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(self.python))
        subprocess.run(self.command(*pip, *arguments), check=True, capture_output=True)
        # A folder that such a file adds to the path comes last, and its own .pth files have no effect.
        dependencies.write_text(f"{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
