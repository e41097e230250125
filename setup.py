"""Compiles the modules that run for every request; see docs/decisions/0006-compiled-modules.md.

`ROUNDHOUSE_COMPILE=1` requires the compilation: the installation fails without it. `ROUNDHOUSE_COMPILE=0` disables it.
By default, the modules are compiled if there is a C compiler with Python's headers and mypyc accepts the sources with
their imports; otherwise they remain Python. An editable install compiles nothing.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Final

MODULES: Final = {
    "router/api/access": ["auth"],
    "router/api/inference": ["endpoint", "response_headers", "server_timing"],
    "router/core": ["json_values"],
    "router/core/cache": ["cache_key", "key_derivation", "miss_reason", "redis_keys"],
    "router/core/endpoints": ["chat_body"],
    "router/core/endpoints/recording": [
        "answer_shapes",
        "choices",
        "choices_recorder",
        "delta_merge",
        "delta_template",
        "frames",
        "json_repair",
        "recording",
        "replay",
        "sse",
        "stream_encoding",
        "token_ids",
        "typed_events",
        "usage",
    ],
    "router/core/endpoints/requests": ["request", "workload"],
    "router/core/quota": ["fair_queue"],
    "router/core/resilience": ["failover", "retry_budget", "retry_schedule", "timeouts", "unserved_paths"],
    "router/core/routing": ["classify", "context_length"],
    "router/core/routing/draft_models": [
        "answer_lengths",
        "decaying_speeds",
        "draft_stats",
        "score_bins",
        "step_rates",
    ],
    "router/flow": [
        "body_budget",
        "cache_lookup",
        "caller",
        "exchange",
        "gateway",
        "generation",
        "heartbeat",
        "parsed_request",
        "request_origin",
        "request_resolver",
        "request_times",
        "response_delivery",
        "response_storage",
        "tenant_rules",
    ],
    "router/flow/attempts": [
        "admission",
        "attempt",
        "candidates",
        "dispatch",
        "dispatch_errors",
        "engine_attempts",
        "engine_health",
        "engine_request",
        "engine_selection",
        "engine_stream",
        "model_start",
    ],
    "router/flow/replicas": ["latest_requests"],
    "router/flow/sharing": ["abandonment", "coalescer", "generation_rules", "inflight", "leadership", "new_generation"],
    "router/flow/trace": ["recorded_trace", "request_trace"],
    "router/net": ["pending_replies"],
    "router/net/client": ["connection", "errors", "http1", "pool", "response", "transport"],
    "router/net/redis": ["clock", "connection", "liveness", "pipeline"],
    "router/net/server": ["connection", "cycle", "eager", "request_parser", "start_limiter", "write_batcher"],
    "router/shared/inflight": ["claims"],
    "router/store": ["cached_entry", "codec", "entry_store", "entry_writer", "local_cache"],
    "router/telemetry": [
        "access_log",
        "line_time",
        "metric_series",
        "prefill_metrics",
        "slow_threshold",
        "telemetry",
        "usage_counter",
    ],
    "router/upstream": ["client", "engine", "engine_watch"],
}
"""The compiled modules of each package: they run for every request or chunk, and define no msgspec class."""

COMPILER: Final = "mypy[mypyc]==2.4.1"


def build_requirements() -> list[str]:
    """The compiler and the router's dependencies, whose types the compiler reads."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [COMPILER, *project["dependencies"]]


def module_paths() -> list[str]:
    return [f"{package}/{name}.py" for package, names in MODULES.items() for name in names]


def has_compiler() -> bool:
    """Whether a C compiler finds the headers of Python and of the C library."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\n", encoding="ascii")
        command = [*shlex.split(compiler), "-I", sysconfig.get_path("include"), "-c", source, "-o", f"{source}.o"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def should_compile(setting: str, arguments: list[str]) -> bool:
    """`setting`: ROUNDHOUSE_COMPILE, empty if it is not set; `arguments`: the command line of setuptools."""
    if setting not in ("", "0", "1"):
        raise SystemExit(f"ROUNDHOUSE_COMPILE is 0 or 1, not {setting!r}")
    return "editable_wheel" not in arguments and (setting == "1" or (setting == "" and has_compiler()))


def extensions(*, required: bool) -> list[Any]:
    """The compiled modules; empty if mypyc refuses the sources, unless they are `required`.

    mypyc may refuse them because a later version of a dependency has other types. Empty also while mypyc is not
    installed: pip calls this file once to read `setup_requires`, and again with those installed.
    """
    try:
        from mypyc.build import mypycify
    except ImportError:
        return []
    try:
        return list(mypycify(module_paths(), multi_file=True, opt_level="2", debug_level="0"))
    except SystemExit:
        if required:
            raise
        print("roundhouse is not compiled: mypyc refuses it, see above", file=sys.stderr)
        return []


def parallel_build() -> Any:
    """setuptools' `build_ext`, which compiles the C files of an extension one after the other, on all cores."""
    from setuptools.command.build_ext import build_ext

    class ParallelBuild(build_ext):
        def build_extensions(self) -> None:
            compile_files = self.compiler.compile

            def compile_in_parallel(sources: list[str], **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    return list(chain.from_iterable(pool.map(lambda name: compile_files([name], **options), sources)))

            self.compiler.compile = compile_in_parallel
            super().build_extensions()

    return ParallelBuild


if __name__ == "__main__":
    from setuptools import setup

    setting = os.environ.get("ROUNDHOUSE_COMPILE", "")
    if should_compile(setting, sys.argv):
        setup(
            ext_modules=extensions(required=setting == "1"),
            cmdclass={"build_ext": parallel_build()},
            setup_requires=build_requirements(),
        )
    else:
        setup()
