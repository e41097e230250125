"""Compiles what runs for every request, where that can be done; see docs/decisions/0006-compiled-modules.md.

`ROUNDHOUSE_COMPILE=1 pip install .` fails where it cannot be done, and `ROUNDHOUSE_COMPILE=0` leaves everything Python.
With neither, it is compiled if that can be done here: there is a C compiler that finds Python's headers, and mypyc
takes the sources together with what they import. An editable install never is.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

MODULES: Final = {
    "router/api": ["auth", "inference", "response_headers"],
    "router/core": ["json_values"],
    "router/core/cache": ["key_derivation", "miss_reason", "redis_keys"],
    "router/core/endpoints": [
        "answer_shapes",
        "chat_body",
        "choices",
        "choices_recorder",
        "delta_merge",
        "delta_template",
        "frames",
        "recording",
        "replay",
        "sse",
        "stream_encoding",
        "typed_events",
    ],
    "router/flow": [
        "abandonment",
        "admission",
        "body_budget",
        "coalescer",
        "dispatch",
        "engine_health",
        "engine_stream",
        "gateway",
        "generation",
        "inflight",
        "leadership",
        "request_resolver",
        "response_delivery",
    ],
    "router/net": ["pending_replies"],
    "router/net/client": ["connection", "errors", "http1", "pool", "response", "transport"],
    "router/net/redis": ["clock", "connection", "liveness", "pipeline"],
    "router/net/server": ["connection", "cycle", "request_parser", "start_limiter", "write_batcher"],
    "router/store": ["cached_entry", "codec", "entry_store", "local_cache"],
    "router/upstream": ["client"],
}
"""What is compiled of each package: what runs for every request or chunk, and makes no class of msgspec's."""

COMPILER: Final = "mypy[mypyc]==2.4.1"


def tools() -> list[str]:
    """The compiler, and what the router imports, whose types it reads."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [COMPILER, *project["dependencies"]]


def paths() -> list[str]:
    return [f"{package}/{name}.py" for package, names in MODULES.items() for name in names]


def has_compiler() -> bool:
    """Whether there is a C compiler that finds the headers of Python and of the C library."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "tried.c")
        source.write_text("#include <Python.h>\n", encoding="ascii")
        command = [*shlex.split(compiler), "-I", sysconfig.get_path("include"), "-c", source, "-o", f"{source}.o"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def is_wanted(said: str, arguments: list[str]) -> bool:
    """Whether to compile: `said` is ROUNDHOUSE_COMPILE, `arguments` what setuptools was asked to do."""
    if said not in ("", "0", "1"):
        raise SystemExit(f"ROUNDHOUSE_COMPILE is 0 or 1, not {said!r}")
    return "editable_wheel" not in arguments and (said == "1" or (said == "" and has_compiler()))


def extensions(*, insist: bool) -> list[Any]:
    """None while the compiler has yet to be installed, as pip does it before it builds.

    What is imported may have other types in a later version, which mypyc then refuses; unless we `insist`, that leaves
    the router Python.
    """
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    try:
        return list(mypycify(paths(), opt_level="2", debug_level="0"))
    except SystemExit:
        if insist:
            raise
        print("roundhouse is not compiled: mypyc refuses it, see above", file=sys.stderr)
        return []


if __name__ == "__main__":
    from setuptools import setup

    said = os.environ.get("ROUNDHOUSE_COMPILE", "")
    if is_wanted(said, sys.argv):
        setup(ext_modules=extensions(insist=said == "1"), setup_requires=tools())
    else:
        setup()
