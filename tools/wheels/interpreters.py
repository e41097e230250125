"""The Pythons of this machine that wheels can be compiled for."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROBE: Final = """
import os, sys, sysconfig
if sys.implementation.name == "cpython" and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("%d.%d" % sys.version_info[:2])
"""


@dataclass(frozen=True)
class Interpreter:
    """`version` as in `3.12`."""

    version: str
    path: Path


def wanted_versions(pyproject: str) -> list[str]:
    """The versions that wheels are built for, from `tool.cibuildwheel.build` in the text of pyproject.toml."""
    selectors: list[str] = tomllib.loads(pyproject)["tool"]["cibuildwheel"]["build"]
    return [f"3.{match[1]}" for match in (re.fullmatch(r"cp3(\d+)-\*", selector) for selector in selectors) if match]


def find_interpreter(version: str, pyenv: Path) -> Interpreter | None:
    """A CPython of this version with its headers: on PATH, else one that pyenv has built in the folder `pyenv`."""
    for path in _candidates(version, pyenv):
        # A shim of pyenv is on PATH for each version that is installed, and fails for those that are not selected.
        done = subprocess.run([path, "-c", _PROBE], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return Interpreter(version, path)
    return None


def _candidates(version: str, pyenv: Path) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)
    folders = pyenv.glob(f"versions/{version}.*")
    yield from sorted((folder / "bin" / "python" for folder in folders), key=_patch_level, reverse=True)


def _patch_level(python: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", python.parent.parent.name)]
