"""The groups of `make test-more`: tests that take long, of parts that seldom change. `make test` leaves them out.

`make test-more CHANGED=1`, as CI runs it, runs those whose paths differ from the commit of `.ci/green`, the last one
that CI has passed; all, if this clone does not have that commit.
"""

import subprocess
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.support.paths import ROOT

GREEN: Final = ROOT / ".ci" / "green"


class Group(NamedTuple):
    tests: tuple[str, ...]
    """Files and folders, from the root of the project."""
    paths: tuple[str, ...]
    """What they test. A folder ends with a slash."""


GROUPS: Final[dict[str, Group]] = {
    "chaos": Group(("tests/chaos/test_chaos.py",), ("router/", "engines/", "tests/chaos/")),
    "proxies": Group(
        ("tests/integration/test_behind_proxies.py",),
        ("router/net/", "router/process/server.py", "router/process/serve.py", "router/process/supervisor.py",
         "router/process/application.py", "docs/behind-a-proxy.md", "tests/support/proxies.py"),
    ),
    "browser": Group(
        ("tests/browser",),
        ("router/dashboard/", "router/api/", "router/process/wiring/", "router/shared/status/router_snapshots.py",
         "router/core/batches/batch_overview.py", "tests/support/browser.py", "tests/support/batch_lines.py"),
    ),
    "wheels": Group(
        ("tests/distribution",),
        ("setup.py", "pyproject.toml", "MANIFEST.in", "Makefile", "distributions/", "tools/wheels/", ".github/"),
    ),
    "ray": Group(("tests/integration/test_ray_placement.py",), ("engines/", "tests/support/ray_nodes.py")),
    "lab": Group(("tests/lab",), ("lab/", "benchmarks/")),
}  # fmt: skip
ALWAYS: Final = ("constraints.txt", "tests/more.py", "tests/conftest.py")
"""A change of one of these is a change of each group, as is one of its own tests."""


def changed_groups(changed: Iterable[str]) -> list[str]:
    """The names of the groups that these files belong to; they are relative to the root of the project."""
    files = list(changed)
    return [
        name
        for name, group in GROUPS.items()
        if any(_is_in(file, path) for file in files for path in (*group.tests, *group.paths, *ALWAYS))
    ]


def _is_in(file: str, path: str) -> bool:
    return file == path or file.startswith(f"{path.removesuffix('/')}/")


def changed_files(commit: str) -> list[str] | None:
    """Those that differ from the commit, with new ones; None if it is not known here."""

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)

    differing, new = git("diff", "--name-only", commit, "--"), git("ls-files", "--others", "--exclude-standard")
    if differing.returncode or new.returncode:
        return None
    return [*differing.stdout.splitlines(), *new.stdout.splitlines()]


def selected_groups(*, only_changed: bool) -> list[str]:
    """The names of the groups that run; says on stdout which do, and which do not."""
    files = changed_files(GREEN.read_text().strip()) if only_changed else None
    if only_changed and files is None:
        sys.stdout.write("the commit of .ci/green is not in this clone: all groups run\n")
    selected = list(GROUPS) if files is None else changed_groups(files)
    unchanged = [name for name in GROUPS if name not in selected]
    sys.stdout.write(f"groups that run: {', '.join(selected) or 'none'}; unchanged: {', '.join(unchanged) or 'none'}\n")
    sys.stdout.flush()
    return selected
