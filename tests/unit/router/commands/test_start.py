"""The command line starts in each command, in `serve` before the router's own process."""

import subprocess
import sys
from typing import Final

from tests.support.paths import ROOT

# What serves requests, or takes long to import.
NEVER: Final = ("redis", "starlette", "uvicorn", "httpx", "rich", "router.net.redis.pipeline", "router.flow")


def test_a_command_imports_only_what_it_needs() -> None:
    program = "import sys, router.cli; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "router.commands.serve" in done.stdout.split()
    assert [name for name in NEVER if name in done.stdout.split()] == []
