"""`roundhouse up`: Redis, engines and router as one process tree in the foreground.

They start in this order, each when the ones that it needs are ready, and stop in the opposite order. An engine that
exits is started again, see engines.supervisor. If Redis exits, a message reports it, and the rest continues. If the
router exits, the tree stops.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from engines.control import serve_control
from engines.launcher import EngineCommand, Program, ProgramNotInstalledError, choose_program, engine_command
from engines.logs import rotate_if_large
from engines.plan import UpPlan
from engines.process import ManagedProcess, StartError, describe_exit
from engines.redis_server import RedisNotInstalledError, find_program, redis_argv
from engines.spec import EngineSpec
from engines.supervisor import EngineSupervisor

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
        self._engines: list[ManagedProcess] = []
        self._supervisors: dict[str, EngineSupervisor] = {}
        self._router: ManagedProcess | None = None
        self._program: Program = "simulator"

    async def run(self) -> int:
        """Starts everything and returns only if the router exits.

        Raises UpError, StartError, RedisNotInstalledError and ProgramNotInstalledError.
        """
        self._program = choose_program(self._plan)
        self._check_ports()
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            await self._start_redis()
            launched = [spec for spec in self._plan.engines if spec.launch is not None]
            commands = {spec.name: engine_command(spec, self._program, self._plan) for spec in launched}
            await self._start_engines(client, launched, commands)
            router = await self._start_router(client)
            self._print_banner(commands)
            watchers = [asyncio.ensure_future(supervisor.run()) for supervisor in self._supervisors.values()]
            if self._redis is not None:
                watchers.append(asyncio.ensure_future(self._report_exit(self._redis)))
            watchers.append(asyncio.ensure_future(self._rotate_logs()))
            control = await serve_control(Path(self._plan.control_socket), self._supervisors)
            try:
                code = await router.wait()
            finally:
                control.close()
                Path(self._plan.control_socket).unlink(missing_ok=True)
                for watcher in watchers:
                    watcher.cancel()
                # Awaited, so that no restart is under way when the processes are stopped.
                await asyncio.gather(*watchers, return_exceptions=True)
        raise UpError(f"the router {describe_exit(code)}; its log: {router.log}")

    async def stop(self) -> None:
        """Stops the router first, so that no new requests arrive, then the engines, then Redis."""
        if self._router is not None:
            await self._router.stop(grace_period=_ROUTER_GRACE_PERIOD)
        # Together: each may take its whole grace period.
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        if self._redis is not None:
            await self._redis.stop()

    def kill(self) -> None:
        """Kills everything at once; a concurrent `stop` returns then."""
        for child in (self._router, *self._engines, self._redis):
            if child is not None:
                child.kill()

    # -- start, in this order ---------------------------------------------------------------------------------------

    def _check_ports(self) -> None:
        addresses = [("router.port", self._plan.router.host, self._plan.router.port)]
        addresses += [(f"engine {s.name}", s.host, s.port) for s in self._plan.engines if s.launch is not None]
        # Binds each port briefly: a port in use is reported before anything is started.
        for purpose, host, port in addresses:
            try:
                with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
                    pass
            except OSError as error:
                # create_server's message repeats the address; an unresolvable host name has no errno of the system.
                reason = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
                raise UpError(f"{purpose}: {host}:{port}: {reason}") from None

    async def _start_redis(self) -> None:
        if self._plan.redis_socket is None:
            return
        path = Path(self._plan.redis_socket)
        path.unlink(missing_ok=True)  # left by a run that was killed; the lock ensures that it is not in use
        argv = redis_argv(find_program("redis-server"), socket=path, folder=self._state)
        self._redis = self._managed_process("redis", argv)
        await self._redis.start()
        await self._redis.wait_until_ready(lambda: _is_redis_ready(path), timeout=_REDIS_READY_TIMEOUT, interval=0.05)
        self._print_status("redis", "ready")

    async def _start_engines(
        self, client: httpx.AsyncClient, specs: list[EngineSpec], commands: dict[str, EngineCommand]
    ) -> None:
        async def start(spec: EngineSpec) -> None:
            command = commands[spec.name]
            self._print_status(spec.name, f"starting ({command.description})")
            child = self._managed_process(spec.name, command.argv, command.env)
            self._engines.append(child)

            async def ready() -> bool:
                return await _is_http_ready(client, f"{spec.url}/health")

            supervisor = EngineSupervisor(
                child, ready, ready_timeout=command.ready_timeout,
                poll_interval=0.1 if self._program == "simulator" else 1.0, report=self._report,
            )  # fmt: skip
            await supervisor.start()
            self._supervisors[spec.name] = supervisor
            self._print_status(spec.name, "ready")

        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(start(spec))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # if one engine fails to start, the task group cancels the others

    async def _start_router(self, client: httpx.AsyncClient) -> ManagedProcess:
        spec = self._plan.router
        self._router = router = self._managed_process("router", spec.argv)
        await router.start()

        async def ready() -> bool:
            return await _is_http_ready(client, f"{spec.url}/health")

        await router.wait_until_ready(ready, timeout=_ROUTER_READY_TIMEOUT, interval=0.05)
        return router

    def _managed_process(self, name: str, argv: list[str], env: dict[str, str] | None = None) -> ManagedProcess:
        return ManagedProcess(name, argv, self._state / "logs" / f"{name}.log", env)

    async def _report_exit(self, process: ManagedProcess) -> None:
        how = describe_exit(await process.wait())
        await process.stop()  # what is left of its process group
        self._report(f"{process.name} {how}; the others keep running. Its log: {process.log}")

    async def _rotate_logs(self) -> None:
        """Bounds the logs of the router and of Redis; the engines' supervisors do it for theirs."""
        while True:
            await asyncio.sleep(_LOG_CHECK_INTERVAL)
            for process in (self._router, self._redis):
                if process is not None:
                    await asyncio.to_thread(rotate_if_large, process.log)

    def _report(self, event: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is closed, or the disk of a log is full
            self._console.print(f"roundhouse: {event}", style="bold red", highlight=False, soft_wrap=True, markup=False)

    # -- messages to a person ---------------------------------------------------------------------------------------

    def _print_status(self, name: str, what: str) -> None:
        self._console.print(f"  {name:<12} {what}", highlight=False, soft_wrap=True, markup=False)

    def _print_banner(self, commands: dict[str, EngineCommand]) -> None:
        plan, url = self._plan, self._plan.router.url
        messages = '[{"role": "user", "content": "Tell me about the sea."}]'
        body = f'{{"model": "{plan.example_model}", "messages": {messages}}}'
        lines = ["", f"Roundhouse serves on {url} (OpenAI's API under {url}/v1)", ""]
        for spec in plan.engines:
            what = commands[spec.name].description if spec.name in commands else "started elsewhere"
            lines.append(f"  {spec.name:<12} {spec.url}  {spec.model}, {spec.task}: {what}")
        lines += [
            "",
            "  send it twice: the second response comes from Redis",
            f"    curl -i {url}/v1/chat/completions -d '{body}'",
        ]
        lines += ["  list the stored entries", f"    {self._redis_cli()} --scan --pattern 'rh:1:default:*'"]
        lines += [f"    {self._redis_cli()} HGETALL KEY   (the X-Cache-Key of a response)"]
        lines += ["", f"  logs: {_relative_path(self._state / 'logs')}   metrics: {url}/metrics   stop: Ctrl-C", ""]
        self._console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)

    def _redis_cli(self) -> str:
        if self._plan.redis_socket is None:
            return "redis-cli -u URL"  # the configured URL may contain a password
        program = (
            "redis-cli" if shutil.which("redis-cli") is not None else _relative_path(Path(find_program("redis-cli")))
        )
        return f"{program} -s {_relative_path(Path(self._plan.redis_socket))}"


def _relative_path(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


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


async def _is_http_ready(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(url)).status_code == 200
    except httpx.HTTPError:
        return False


def main(plan: UpPlan) -> int:
    return asyncio.run(up(plan, Console(file=sys.stdout)))
