"""Which build of the router this is."""

from functools import cache
from importlib.metadata import version
from typing import Final

from router.core.endpoints.recording import sse

DISTRIBUTION: Final = "roundhouse-router"
"""Its name on a package index; the command and the import packages have shorter ones."""


@cache
def build_version() -> str:
    return version(DISTRIBUTION)


def is_compiled() -> bool:
    """Whether the modules that run for every request are compiled; see docs/decisions/0006-compiled-modules.md."""
    return not str(sse.__file__).endswith(".py")  # a compiled module is a shared library


def describe_build() -> str:
    return f"{build_version()}{' (compiled)' if is_compiled() else ''}"
