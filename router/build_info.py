"""Which build of the router this is."""

from importlib.metadata import version

from router.core.endpoints import sse


def build_version() -> str:
    return version("roundhouse")


def is_compiled() -> bool:
    """Whether the modules that run for every request are compiled; see docs/decisions/0006-compiled-modules.md."""
    return not str(sse.__file__).endswith(".py")  # a compiled module is a shared library


def describe_build() -> str:
    return f"{build_version()}{' (compiled)' if is_compiled() else ''}"
