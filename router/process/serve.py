"""The process of `roundhouse serve`: `python -m router.process.serve roundhouse serve --config=FILE`.

It serves in this process or in several worker processes, which import this module again. So it must not import what
only the command line needs.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from router.api.inference.prompt_log import prompt_log_warning
from router.core.listen_failure import explain_listen_failure
from router.discovery.start import DiscoveryError, settings_of_engines
from router.flow.tenant_rules import unmatched_models
from router.process.app import build
from router.process.pid_file import PidFile, pid_file_path
from router.process.reload_audit import record_reload
from router.process.reloading import Reloader
from router.process.server import make_server
from router.process.service_manager import notify_ready
from router.process.start_report import EngineCount, log_ready, log_start
from router.process.supervisor import Supervisor
from router.settings import DEFAULT_PATH, ConfigurationError, Settings, load, missing_extra
from router.settings.serve_options import ServeOptions, from_arguments
from router.shared.connection.redis import ask_server
from router.telemetry.log_output import set_up_logging
from router.telemetry.worker_metrics import has_live_worker

log = logging.getLogger("roundhouse.server")

REDIS_TIMEOUT: Final = 1.0
"""Seconds that Redis has to reply before the router starts without its version."""

METRICS_DIR_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""The environment variable in which prometheus_client expects the directory that workers share."""

_WORKERS_DIR_PREFIX: Final = "roundhouse-metrics-"
_MAX_LOCK_DELAY: Final = 60.0  # seconds from the creation of such a directory to its lock
_FAILED: Final = 1
_USAGE: Final = 2
_INTERRUPTED: Final = 130
_NO_DEFAULT_FILE: Final = "; `roundhouse init` writes one, or name the engines: `roundhouse serve --engine URL`"


_NO_FILE: Final = "no configuration file is used: the engines said which models they serve"


class CannotStartError(Exception):
    """Why the router does not start, a line each."""

    def __init__(self, exit_code: int, *lines: str) -> None:
        super().__init__(*lines)
        self.exit_code = exit_code
        self.lines = lines


def listen(settings: Settings) -> socket.socket:
    """Raises OSError if the address is in use."""
    family = socket.AF_INET6 if ":" in settings.router.host else socket.AF_INET
    # Only with the protocol named does asyncio recognise TCP and set TCP_NODELAY on accepted connections.
    listen_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listen_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listen_socket.bind((settings.router.host, settings.router.port))
        listen_socket.listen(4096)
        listen_socket.set_inheritable(True)  # for the worker processes
    except OSError:
        listen_socket.close()
        raise
    return listen_socket


def run(settings: Settings, options: ServeOptions, listen_socket: socket.socket) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code. SIGHUP reloads the configuration."""
    set_up_logging(settings.router.log_format)
    log_start(settings, asyncio.run(ask_server(settings.redis_url, timeout=REDIS_TIMEOUT)))
    if options.engine:
        log.info("%s", _NO_FILE)
    if (warning := prompt_log_warning(settings)) is not None:
        log.warning("%s", warning)
    for line in unmatched_models(settings):
        log.warning("%s", line)
    config_file = None if options.engine else Path(options.config).resolve()
    # Whoever finds the pid file may send SIGHUP, which would end this process before it has a handler. So it waits
    # until there is one: Supervisor and DrainingServer unblock it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    with _pid_file(pid_file_path(settings)) as outcome_file:
        reloader = Reloader(config_file, options.overrides, outcome_file, record_reload)
        exit_code = _serve(settings, reloader, listen_socket)
    log.info("stopped with exit code %d", exit_code)
    return exit_code


def _serve(settings: Settings, reloader: Reloader, listen_socket: socket.socket) -> int:
    if settings.router.workers == 1:
        on_ready = partial(_on_ready, settings)
        server = make_server(settings, build(settings), reloader, on_ready, on_reloaded=reloader.finish)
        return server.serve_until_stopped(listen_socket)
    with _workers_dir() as metrics_dir:
        # Before any worker starts: prometheus_client reads it when it is imported.
        os.environ[METRICS_DIR_VARIABLE] = metrics_dir
        return Supervisor(settings, reloader, listen_socket, metrics_dir).run()


@contextlib.contextmanager
def _workers_dir() -> Iterator[str]:
    """A temporary directory for the workers' metrics and slots. Removes those of routers that were killed."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_WORKERS_DIR_PREFIX) as directory:
        # systemd-tmpfiles deletes what was not used in /tmp for 10 days, but nothing below a directory with a lock of
        # another process (tmpfiles.d(5)).
        file = os.open(directory, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield directory
        finally:
            os.close(file)


def _remove_abandoned(folder: Path) -> None:
    for path in folder.glob(f"{_WORKERS_DIR_PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or locked, since its supervisor runs
            directory = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                status = os.fstat(directory)
                is_new = time.time() - status.st_mtime < _MAX_LOCK_DELAY
                if status.st_uid == os.geteuid() and not is_new and not has_live_worker(path):
                    shutil.rmtree(path)
            finally:
                os.close(directory)


def _on_ready(settings: Settings, engines: EngineCount) -> None:
    log_ready(settings, engines)
    notify_ready()


@contextlib.contextmanager
def _pid_file(path: Path) -> Iterator[Path | None]:
    """Holds the pid file; yields where the outcome of a reload is written. None if there can be no file."""
    try:
        pid_file = PidFile(path)
    except OSError as error:
        reason = "another router holds it" if isinstance(error, BlockingIOError) else error.strerror
        log.warning("there is no pid file, so `roundhouse reload` does not find this router: %s: %s", path, reason)
        yield None
        return
    outcome_file = path.with_suffix(".reload")
    outcome_file.unlink(missing_ok=True)
    try:
        yield outcome_file
    finally:
        outcome_file.unlink(missing_ok=True)
        pid_file.close()


def _settings(options: ServeOptions) -> Settings:
    """Raises CannotStartError."""
    config = Path(options.config)
    try:
        if options.engine:
            return asyncio.run(settings_of_engines(options, os.environ, _print_line))
        return load(config, options=options.overrides)
    except DiscoveryError as error:
        raise CannotStartError(_FAILED, *error.lines) from None
    except ConfigurationError as error:
        has_hint = options.config == DEFAULT_PATH and not config.exists()
        raise CannotStartError(
            _USAGE, *[f"{m}{_NO_DEFAULT_FILE if has_hint else ''}" for m in error.mistakes]
        ) from None


def _start(options: ServeOptions) -> int:
    """Raises CannotStartError."""
    settings = _settings(options)
    source = "" if options.engine else f"{options.config}: "
    if (problem := missing_extra(settings)) is not None:
        raise CannotStartError(_FAILED, f"{source}{problem}")
    try:
        listen_socket = listen(settings)
    except OSError as error:
        router = settings.router
        failure = explain_listen_failure(error.errno or 0, error.strerror or str(error), router.port)
        line = f"{source}router.{failure.about}: {failure.line(router.host, router.port)}"
        raise CannotStartError(_FAILED, line) from None
    return run(settings, options, listen_socket)


def _print_line(line: str) -> None:
    sys.stderr.write(f"roundhouse: {' '.join(line.split())}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str]) -> int:
    try:
        return _start(from_arguments(arguments))
    except CannotStartError as error:
        for line in error.lines:
            _print_line(line)
        return error.exit_code
    except KeyboardInterrupt:  # before the server handles the signal
        return _INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
