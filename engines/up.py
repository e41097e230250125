"""`roundhouse up`: Redis, engines and router as one process tree in the foreground.

They start in this order, each when the ones that it needs are ready, and stop in the opposite order. Redis and engines
that exit are started again, see engines.supervisor. If the router exits, the tree stops.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from engines.announcer import Announcer
from engines.banner import banner
from engines.control import serve_control
from engines.fleet import EngineFleet, is_http_ready
from engines.launcher import ProgramNotInstalledError, choose_program
from engines.launcher_id import launcher_id
from engines.logs import rotate_if_large
from engines.plan import RouterSpec, UpPlan
from engines.process import ManagedProcess, StartError, describe_exit
from engines.redis_server import RedisNotInstalledError, find_program, redis_argv
from engines.sign_in import make_sign_in_link
from engines.supervisor import EngineSupervisor
from engines.switch.gather import find_lack_of_room
from engines.switch.record import read_records, restore
from engines.switch.switcher import Switcher
from router.core.listen_failure import explain_listen_failure
from router.shared.audit.launcher_audit import LauncherAudit

_REDIS_READY_TIMEOUT: Final = 60.0  # seconds; Redis may have to load its data
_ROUTER_READY_TIMEOUT: Final = 60.0
_LOG_CHECK_INTERVAL: Final = 30.0  # seconds
_ROUTER_GRACE_PERIOD: Final = 35.0  # seconds; more than the 30 s that the router gives open streams


class UpError(Exception):
    """The tree cannot be started; the message is one line with the reason."""


async def up(plan: UpPlan, console: Console) -> int:
    """Runs the tree until SIGINT or SIGTERM; returns the exit code. `console` shows messages to a person."""
    tree = ProcessTree(plan, console)
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop_requested.set)
    try:
        with _state_lock(Path(plan.state)):
            # Both are awaited, so that a signal also interrupts the start.
            stopped = asyncio.ensure_future(stop_requested.wait())
            running = asyncio.ensure_future(tree.run())
            try:
                await asyncio.wait([stopped, running], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                console.print("\nstopping … (Ctrl-C again to stop at once)")
                return 0
            finally:
                # From here on, the event means that a second signal has arrived.
                stop_requested.clear()
                running.cancel()
                stopped.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):  # raised above, if it is not cancelled
                    await running
                await _stop(tree, force=stop_requested)
    except (UpError, StartError, RedisNotInstalledError, ProgramNotInstalledError) as error:
        console.print(f"roundhouse: {error}", style="bold red", highlight=False, soft_wrap=True, markup=False)
        return 1


async def _stop(tree: "ProcessTree", *, force: asyncio.Event) -> None:
    stopping = asyncio.ensure_future(tree.stop())
    forced = asyncio.ensure_future(force.wait())
    await asyncio.wait([stopping, forced], return_when=asyncio.FIRST_COMPLETED)
    forced.cancel()
    if not stopping.done():
        tree.kill()
    await stopping


@contextlib.contextmanager
def _state_lock(state: Path) -> Iterator[None]:
    """Locks the state folder, so that two trees cannot share Redis' data."""
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (state / "up.lock").open("a+")
    except OSError as error:
        raise UpError(f"{state}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UpError(
                f"`roundhouse up` is already running with {state} (pid {file.read().strip() or '?'})"
            ) from None
        # The pid is only for the error message of a second `up`; the lock itself is the flock.
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


class ProcessTree:
    """The processes of a plan."""

    def __init__(self, plan: UpPlan, console: Console) -> None:
        self._plan = plan
        self._console = console
        self._state = Path(plan.state)
        self._redis: ManagedProcess | None = None
        self._redis_supervisor: EngineSupervisor | None = None
        self._fleet: EngineFleet | None = None
        self._router: ManagedProcess | None = None

    async def run(self) -> int:
        """Starts everything and returns only if the router exits.

        Raises UpError, StartError, RedisNotInstalledError and ProgramNotInstalledError.
        """
        program = choose_program(self._plan)
        self._check_ports()
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            await self._start_redis()
            announcer = Announcer.connect(self._plan.redis, launcher_id(self._state), self._report)
            self._fleet = EngineFleet(self._plan, program, client, announcer, self._report, self._print_status)
            restored = restore(self._plan.engines, read_records(self._state))
            for note in restored.notes:
                self._print_status("switched", note)
            await self._fleet.start([spec for spec in restored.specs if spec.launch is not None], restored.revisions)
            switcher = Switcher(
                self._fleet, restored.records, client, find_lack_of_room(self._plan, program), self._report,
                audit=LauncherAudit(self._plan.redis, self._report),
            )  # fmt: skip
            if self._plan.router is not None:
                self._router = await self._start_router(client, self._plan.router)
            commands = {name: self._fleet.command(engine.spec) for name, engine in self._fleet.engines.items()}
            link = await make_sign_in_link(client, self._plan.router) if self._plan.router is not None else None
            lines = banner(self._plan, commands, announcer.problem, link)
            self._console.print(lines, highlight=False, soft_wrap=True, markup=False)
            code = await self._run_until_exit(self._fleet, switcher)
        raise UpError(f"the router {describe_exit(code)}; its log: {self._state / 'logs' / 'router.log'}")

    async def _run_until_exit(self, fleet: EngineFleet, switcher: Switcher) -> int:
        """Returns the exit code of the router; without a router, it runs until it is cancelled."""
        watchers = [asyncio.ensure_future(self._rotate_logs())]
        if self._redis_supervisor is not None:
            watchers.append(asyncio.ensure_future(self._redis_supervisor.run()))
        control = await serve_control(Path(self._plan.control_socket), fleet, switcher)
        try:
            if self._router is None:
                await asyncio.Event().wait()  # until it is cancelled
                raise AssertionError
            return await self._router.wait()
        finally:
            control.close()
            Path(self._plan.control_socket).unlink(missing_ok=True)
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            await switcher.aclose()

    async def stop(self) -> None:
        """Stops the router first, so that no new requests arrive, then the engines, then Redis."""
        if self._router is not None:
            await self._router.stop(grace_period=_ROUTER_GRACE_PERIOD)
        if self._fleet is not None:
            await self._fleet.stop()
        if self._redis is not None:
            await self._redis.stop()

    def kill(self) -> None:
        """Kills everything at once; a concurrent `stop` returns then."""
        if self._fleet is not None:
            self._fleet.kill()
        for child in (self._router, self._redis):
            if child is not None:
                child.kill()

    # -- start, in this order ---------------------------------------------------------------------------------------

    def _check_ports(self) -> None:
        router = self._plan.router
        addresses = [("router", router.host, router.port)] if router is not None else []
        addresses += [(f"engine {s.name}", s.host, s.port) for s in self._plan.engines if s.listens_here]
        # Binds each port briefly: a port in use is reported before anything is started.
        for purpose, host, port in addresses:
            try:
                with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
                    pass
            except OSError as error:
                # create_server's message repeats the address; an unresolvable host name has no errno of the system.
                number = error.errno or 0
                reason = os.strerror(number) if number > 0 else error.strerror or str(error)
                failure = explain_listen_failure(number, reason, port)
                setting = f"router.{failure.about}" if purpose == "router" else f"{purpose}: url"
                raise UpError(f"{setting}: {failure.line(host, port)}") from None

    async def _start_redis(self) -> None:
        if self._plan.redis_socket is None:
            return
        path = Path(self._plan.redis_socket)
        path.unlink(missing_ok=True)  # left by a run that was killed; the lock ensures that it is not in use
        argv = redis_argv(find_program("redis-server"), socket=path, folder=self._state)
        self._redis = self._managed_process("redis", argv)
        # Redis needs no more than what an engine's supervisor does: restarts, with growing waits.
        self._redis_supervisor = EngineSupervisor(
            self._redis, lambda: _is_redis_ready(path), ready_timeout=_REDIS_READY_TIMEOUT, poll_interval=0.05,
            report=self._report,
        )  # fmt: skip
        await self._redis_supervisor.start()
        self._print_status("redis", "ready")

    async def _start_router(self, client: httpx.AsyncClient, spec: RouterSpec) -> ManagedProcess:
        self._router = router = self._managed_process("router", spec.argv, spec.env)
        await router.start()

        async def ready() -> bool:
            return await is_http_ready(client, f"{spec.url}/health")

        await router.wait_until_ready(ready, timeout=_ROUTER_READY_TIMEOUT, interval=0.05)
        return router

    def _managed_process(self, name: str, argv: list[str], env: Mapping[str, str] | None = None) -> ManagedProcess:
        return ManagedProcess(name, argv, self._state / "logs" / f"{name}.log", env)

    async def _rotate_logs(self) -> None:
        """Bounds the router's log; the supervisors do it for theirs."""
        while True:
            await asyncio.sleep(_LOG_CHECK_INTERVAL)
            if self._router is not None:
                await asyncio.to_thread(rotate_if_large, self._router.log)

    def _report(self, event: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed, or the disk of a log is full
            self._console.print(f"roundhouse: {event}", style="bold red", highlight=False, soft_wrap=True, markup=False)

    def _print_status(self, name: str, what: str) -> None:
        self._console.print(f"  {name:<12} {what}", highlight=False, soft_wrap=True, markup=False)


async def _is_redis_ready(path: Path) -> bool:
    """Whether a Redis at this socket has loaded its data and replies."""
    try:
        # PING and not only a connection: while Redis loads its data, it replies -LOADING.
        reader, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()


def main(plan: UpPlan) -> int:
    return asyncio.run(up(plan, Console(file=sys.stdout)))
