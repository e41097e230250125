"""`roundhouse up`: Redis, engines and router as one process tree in the foreground.

They are started in that order, each when what it needs is ready, and ended in the opposite one. An engine or a Redis
that ends meanwhile is told of and left to those who watch over engines; without its router the tree has no use.
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

from engines.launcher import EngineCommand, Program, ProgramNotInstalledError, choose_program, engine_command
from engines.plan import UpPlan
from engines.process import ManagedProcess, StartError, describe_exit
from engines.redis_server import RedisNotInstalledError, find_program, redis_argv
from engines.spec import EngineSpec

_REDIS_READY_TIMEOUT: Final = 60.0  # seconds; it may have a file to load
_ROUTER_READY_TIMEOUT: Final = 60.0
_ROUTER_GRACE_PERIOD: Final = 35.0  # it gives its streams 30 seconds


class UpError(Exception):
    """The tree cannot be started; one line that says why."""


async def up(plan: UpPlan, console: Console) -> int:
    """Runs the tree until SIGINT or SIGTERM; returns the exit code. `console` is where a person is told of it."""
    tree = ProcessTree(plan, console)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        with _state_lock(Path(plan.state)):
            stopped = asyncio.ensure_future(stop.wait())
            running = asyncio.ensure_future(tree.run())
            try:
                await asyncio.wait([stopped, running], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    return running.result()
                console.print("\nstopping … (Ctrl-C again to end it at once)")
                return 0
            finally:
                stop.clear()
                running.cancel()
                stopped.cancel()
                with contextlib.suppress(asyncio.CancelledError, UpError, StartError):
                    await running
                await _stop(tree, force=stop)
    except (UpError, StartError, RedisNotInstalledError, ProgramNotInstalledError) as error:
        console.print(f"roundhouse: {error}", style="bold red", highlight=False, soft_wrap=True, markup=False)
        return 1


async def _stop(tree: "ProcessTree", *, force: asyncio.Event) -> None:
    """Ends the tree in order; at once, when it is asked to a second time."""
    stopping = asyncio.ensure_future(tree.stop())
    hurried = asyncio.ensure_future(force.wait())
    await asyncio.wait([stopping, hurried], return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not stopping.done():
        tree.kill()
    await stopping


@contextlib.contextmanager
def _state_lock(state: Path) -> Iterator[None]:
    """Holds the state folder, so that two trees cannot share a Redis' data."""
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
            raise UpError(f"`roundhouse up` runs already with {state} (pid {file.read().strip() or '?'})") from None
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
        self._router: ManagedProcess | None = None
        self._program: Program = "simulator"

    async def run(self) -> int:
        """Starts everything, and returns only when it cannot go on. Raises UpError, StartError and their like."""
        self._program = choose_program(self._plan)
        self._check_ports()
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            await self._start_redis()
            launched = [spec for spec in self._plan.engines if spec.launch is not None]
            commands = {spec.name: engine_command(spec, self._program, self._plan) for spec in launched}
            await self._start_engines(client, launched, commands)
            router = await self._start_router(client)
        self._print_banner(commands)
        watched = [*self._engines, *([self._redis] if self._redis is not None else [])]
        watchers = [asyncio.ensure_future(self._report_exit(child)) for child in watched]
        try:
            code = await router.wait()
        finally:
            for watcher in watchers:
                watcher.cancel()
        raise UpError(f"the router {describe_exit(code)}; its log: {router.log}")

    async def stop(self) -> None:
        """Ends what runs: the router, so that no request comes any more, then the engines, then Redis."""
        if self._router is not None:
            await self._router.stop(grace_period=_ROUTER_GRACE_PERIOD)
        await asyncio.gather(*(engine.stop() for engine in self._engines))
        if self._redis is not None:
            await self._redis.stop()

    def kill(self) -> None:
        """Ends everything at once; whoever waits in `stop` need not wait any more."""
        for child in (self._router, *self._engines, self._redis):
            if child is not None:
                child.kill()

    # -- one after the other ----------------------------------------------------------------------------------------

    def _check_ports(self) -> None:
        wanted = [("router.port", self._plan.router.host, self._plan.router.port)]
        wanted += [(f"engine {s.name}", s.host, s.port) for s in self._plan.engines if s.launch is not None]
        for place, host, port in wanted:
            try:
                with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
                    pass
            except OSError as error:
                # create_server says the address once more; a name that cannot be resolved has no errno of the system's.
                why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
                raise UpError(f"{place}: {host}:{port}: {why}") from None

    async def _start_redis(self) -> None:
        if self._plan.redis_socket is None:
            return
        path = Path(self._plan.redis_socket)
        path.unlink(missing_ok=True)  # of an earlier run that was killed; the lock says that nobody uses it
        argv = redis_argv(find_program("redis-server"), socket=path, folder=self._state)
        self._redis = self._managed_process("redis", argv)
        await self._redis.start()
        await self._redis.wait_until_ready(lambda: _is_redis_ready(path), timeout=_REDIS_READY_TIMEOUT, interval=0.05)
        self._print_status("redis", "ready")

    async def _start_engines(
        self, client: httpx.AsyncClient, specs: list[EngineSpec], commands: dict[str, EngineCommand]
    ) -> None:
        async def start(spec: EngineSpec) -> None:
            how = commands[spec.name]
            self._print_status(spec.name, f"starting ({how.description})")
            child = self._managed_process(spec.name, how.argv, how.env)
            self._engines.append(child)
            await child.start()

            async def ready() -> bool:
                return await _is_http_ready(client, f"{spec.url}/health")

            await child.wait_until_ready(
                ready, timeout=how.ready_timeout, interval=0.1 if self._program == "simulator" else 1.0
            )
            self._print_status(spec.name, "ready")

        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    group.create_task(start(spec))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # for one that cannot start the others are given up

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
        self._console.print(
            f"roundhouse: {process.name} {how}; the others go on. Its log: {process.log}",
            style="bold red", highlight=False, soft_wrap=True, markup=False,
        )  # fmt: skip

    # -- told to a person -------------------------------------------------------------------------------------------

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
            "  ask it twice: the second answer comes from Redis",
            f"    curl -i {url}/v1/chat/completions -d '{body}'",
        ]
        lines += ["  see what it keeps", f"    {self._redis_cli()} --scan --pattern 'rh:1:default:*'"]
        lines += [f"    {self._redis_cli()} HGETALL KEY   (the X-Cache-Key of an answer)"]
        lines += ["", f"  logs: {_relative_path(self._state / 'logs')}   metrics: {url}/metrics   stop: Ctrl-C", ""]
        self._console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)

    def _redis_cli(self) -> str:
        if self._plan.redis_socket is None:
            return "redis-cli -u URL"  # the configuration's own may have a password in it
        program = (
            "redis-cli" if shutil.which("redis-cli") is not None else _relative_path(Path(find_program("redis-cli")))
        )
        return f"{program} -s {_relative_path(Path(self._plan.redis_socket))}"


def _relative_path(path: Path) -> str:
    """A path from here, if that is shorter."""
    with contextlib.suppress(ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


async def _is_redis_ready(path: Path) -> bool:
    """Whether a Redis at this socket has loaded its data and answers."""
    try:
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
    """Runs a plan; returns the exit code."""
    return asyncio.run(up(plan, Console(file=sys.stdout)))
