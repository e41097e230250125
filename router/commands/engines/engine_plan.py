"""Hands the engines of a configuration to the package `engines`, which the router does not import."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from router.commands.local_key import uses_local_key
from router.settings import EMBEDDED, Settings


def exec_engines(command: list[str], plan: dict[str, Any]) -> NoReturn:
    """Replaces this process by `python -m engines COMMAND`.

    The plan is passed in a file. It may hold secrets of `launch.env`, which others could read in a named file or an
    argument; a pipe would block after 64 KiB, since nothing reads it before exec.
    """
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(msgspec.json.encode(plan))
        file.seek(0)
        os.set_inheritable(file.fileno(), True)
        argv = [sys.executable, "-m", "engines", *command, "--plan-fd", str(file.fileno())]
        os.execv(sys.executable, argv)  # noqa: S606 - no shell


def build_plan(
    settings: Settings, config: Path, engine_kind: str, vllm_python: Path | None, *, with_router: bool = True
) -> dict[str, Any]:
    """The input of `python -m engines`, which engines/plan.py reads. `engine_kind` is auto, vllm or simulator."""
    models = {model.name: model for model in settings.model}
    tables = {engine.name: engine for engine in settings.engine}
    turns = {name for gpu in settings.gpu for name in gpu.engines}
    return {
        "state": str(Path(settings.router.state).resolve()),
        "control_socket": str(settings.control_socket),
        "redis_socket": str(settings.redis_socket) if settings.cache.url == EMBEDDED else None,
        "redis_url": None if settings.cache.url == EMBEDDED else settings.cache.url,
        "router": _router_spec(settings, config) if with_router else None,
        "kind": engine_kind,
        "vllm_python": str(vllm_python) if vllm_python is not None else None,
        "engines": [
            {
                "name": engine.name,
                "model": engine.model,
                "task": engine.task,
                "url": engine.addresses[0] if engine.addresses else "",  # without: Ray decides it
                "served_model": engine.served_model or engine.model,
                "max_model_len": engine.max_model_len,
                "max_in_flight": engine.max_in_flight,
                "scheduling": engine.scheduling,
                "kv_events": engine.kv_events,
                "kv_events_replay": engine.kv_events_replay,
                "revision": models[engine.model].revision,
                "fallback": models[engine.model].fallback,
                "sleep": "process" if engine.sleep == "process" else "vllm" if engine.name in turns else None,
                "sleep_level": engine.sleep_level,
                "launch": msgspec.to_builtins(engine.launch),
            }
            for engine in settings.engine
        ],
        "gpus": [
            {
                "name": gpu.name,
                "engines": {name: gpu.need(tables[name]) for name in gpu.engines if name in tables},
                "capacity": gpu.capacity,
                "by_memory": gpu.memory is not None,
            }
            for gpu in settings.gpu
        ],
        "watchdog": {
            **msgspec.to_builtins(settings.watchdog, enc_hook=float),
            "continued_models": [m.name for m in settings.model if m.resume and settings.retry.continuations],
        },
        "example_model": settings.model[0].name,
    }


def _router_spec(settings: Settings, config: Path) -> dict[str, Any]:
    return {
        "host": settings.router.host,
        "port": settings.router.port,
        "argv": [sys.executable, "-m", "router", "serve", "--no-drain", "--config", str(config.resolve())],
        "admin_key_file": str(settings.admin_key_file) if uses_local_key(settings) else settings.auth.admin_key_file,
    }
