"""This machine, as far as the router needs it: its port, open files and the state directory."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from router.checks.finding import Finding, Problem, wrong
from router.checks.pages import get_page
from router.core.listen_failure import explain_listen_failure
from router.net.client.errors import EngineError
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from router.process_limits import MAX_DESCRIPTORS, max_connections
from router.settings import Settings, is_url
from router.settings.tables import EMBEDDED, RouterSettings

_FEW_CLIENTS: Final = 256
"""Clients of a process; fewer are too few for a router of even one engine."""

_HEALTH_FIELDS: Final = frozenset(("circuit_breaker_open", "gpu_cache_usage_percent", "engines", "redis"))


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """- `bind_error`: the errno with which the router could not listen; 0 if it can.
    - `has_router`: whether the port is a router's already.
    - `descriptors`: open files that a process may have.
    - `unwritable`: the state directory, or its nearest parent that exists, if it cannot be written.
    - `unwritable_files`: the same of the folder of files, if it is none of an object store.
    """

    bind_error: int = 0
    has_router: bool = False
    descriptors: int = MAX_DESCRIPTORS
    unwritable: Path | None = None
    unwritable_files: Path | None = None


async def examine_machine(transport: HTTPTransport, settings: Settings, *, timeout: float) -> MachineFacts:
    """`timeout` in seconds, for whoever listens on the port. Binds the port for a moment, if it is free."""
    bind_error = _try_to_bind(settings.router)
    folder = settings.batch.folder
    in_use = bind_error == errno.EADDRINUSE
    return MachineFacts(
        bind_error=bind_error,
        has_router=in_use and await _is_router(transport, settings.router, timeout),
        descriptors=_descriptors(),
        unwritable=_unwritable(Path(settings.router.state)),
        unwritable_files=_unwritable(Path(folder)) if folder and not is_url(folder) else None,
    )


def judge_machine(settings: Settings, facts: MachineFacts) -> Iterator[Finding]:
    yield _port(settings.router, facts)
    yield from _open_files(settings, facts)
    if facts.unwritable is not None:
        yield from _state(settings, facts.unwritable)
    if facts.unwritable_files is not None:
        note = f"cannot be written: this user may not write {facts.unwritable_files}"
        yield wrong("folder of files", "batch.folder", Problem(note, "create it, or set another"))


def _port(router: RouterSettings, facts: MachineFacts) -> Finding:
    what = f"port {router.port} of {router.host}"
    if not facts.bind_error:
        return Finding(what, "is free")
    if facts.has_router:
        return Finding(what, "a router already serves there")
    failure = explain_listen_failure(facts.bind_error, os.strerror(facts.bind_error), router.port)
    return wrong(what, f"router.{failure.about}", Problem(failure.note, failure.fix))


def _state(settings: Settings, unwritable: Path) -> Iterator[Finding]:
    note, fix = f"cannot be written: this user may not write {unwritable}", "create it, or set another"
    if _needs_state(settings):
        yield wrong("state directory", "router.state", Problem(note, fix))
    elif settings.router.pid_file is None:
        note += ". There will be no pid file, and `roundhouse reload` will not find the router"
        yield wrong("state directory", "router.state", Problem(note, fix), "warning")


def _open_files(settings: Settings, facts: MachineFacts) -> Iterator[Finding]:
    clients = max_connections(facts.descriptors)
    in_flight = [engine.max_in_flight for engine in settings.engine for _ in engine.addresses]
    wanted = -(-sum(limit or 0 for limit in in_flight) // settings.router.workers)
    setting = None
    fix = "raise it: LimitNOFILE in the systemd unit, or ulimit -Hn"
    if clients < wanted:
        problem = Problem(
            f"{facts.descriptors} files let a process serve {clients} clients, but its engines take {wanted} requests",
            fix,
        )
        yield wrong("open-file limit", setting, problem, "warning")
    elif clients < _FEW_CLIENTS:
        problem = Problem(f"{facts.descriptors} files let a process serve only {clients} clients", fix)
        yield wrong("open-file limit", setting, problem, "warning")


def _needs_state(settings: Settings) -> bool:
    """Whether `roundhouse up` starts what writes there; the router itself needs only its pid file there."""
    return settings.cache.url == EMBEDDED or any(engine.launch is not None for engine in settings.engine)


def _try_to_bind(router: RouterSettings) -> int:
    family = socket.AF_INET6 if ":" in router.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the router does
        try:
            probe.bind((router.host, router.port))
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


async def _is_router(transport: HTTPTransport, router: RouterSettings, timeout: float) -> bool:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(router.host, router.host)
    target = RequestTarget(f"http://{f'[{host}]' if ':' in host else host}:{router.port}", "/healthz")
    try:
        _, page = await get_page(transport, target, timeout=timeout)
        fields = msgspec.json.decode(page, type=dict[str, msgspec.Raw])
    except (EngineError, msgspec.DecodeError, UnicodeDecodeError):
        return False
    return fields.keys() >= _HEALTH_FIELDS


def _descriptors() -> int:
    """The router raises its limit to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)


def _unwritable(folder: Path) -> Path | None:
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return None if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) else existing
