"""What a Redis server has used, by its own INFO: CPU time, commands, reads, bytes."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.redis_process import RedisServer


class RedisUsage(NamedTuple):
    """Of one server since its start, or between two readings.

    `cpu`: seconds of the main thread, which executes all commands, reads and writes (`io-threads 1`, the default).
    `cpu_all`: seconds of all threads. `reads`: reads from sockets; a batch of commands is read at once.
    `calls`: executions by command name, also of commands within scripts.
    """

    cpu: float
    cpu_all: float
    commands: int
    reads: int
    bytes_in: int
    bytes_out: int
    calls: Mapping[str, int]

    def plus(self, other: "RedisUsage") -> "RedisUsage":
        return RedisUsage(
            cpu=self.cpu + other.cpu,
            cpu_all=self.cpu_all + other.cpu_all,
            commands=self.commands + other.commands,
            reads=self.reads + other.reads,
            bytes_in=self.bytes_in + other.bytes_in,
            bytes_out=self.bytes_out + other.bytes_out,
            calls=Counter(self.calls) + Counter(other.calls),
        )

    def minus(self, other: "RedisUsage", share: float = 1.0) -> "RedisUsage":
        """Without `share` of what the other one has used. Counts are rounded, and not below zero."""

        def less(value: int, used: int) -> int:
            return max(0, round(value - share * used))

        calls = {name: less(count, other.calls.get(name, 0)) for name, count in self.calls.items()}
        return RedisUsage(
            max(0.0, self.cpu - share * other.cpu), max(0.0, self.cpu_all - share * other.cpu_all),
            less(self.commands, other.commands), less(self.reads, other.reads),
            less(self.bytes_in, other.bytes_in), less(self.bytes_out, other.bytes_out),
            {name: count for name, count in calls.items() if count},
        )  # fmt: skip


async def read_usage(server: RedisServer) -> RedisUsage:
    info: dict[str, Any] = await server.command("INFO", "everything")
    user, system = info["used_cpu_user"], info["used_cpu_sys"]
    return RedisUsage(
        info.get("used_cpu_user_main_thread", user) + info.get("used_cpu_sys_main_thread", system), user + system,
        info["total_commands_processed"], info.get("total_reads_processed", 0),
        info["total_net_input_bytes"], info["total_net_output_bytes"],
        {name.removeprefix("cmdstat_"): each["calls"] for name, each in info.items() if name.startswith("cmdstat_")},
    )  # fmt: skip


async def read_usages(servers: Sequence[RedisServer]) -> list[RedisUsage]:
    return [await read_usage(server) for server in servers]


def cores() -> tuple[set[int], set[int]]:
    """The core for Redis, and those for everything else; both the same on a machine with one core."""
    *others, last = sorted(os.sched_getaffinity(0))
    return {last}, set(others) or {last}


async def pin(server: RedisServer, allowed: set[int]) -> None:
    """Binds all threads of a server to cores, as `taskset --all-tasks --pid` does."""
    info = await server.command("INFO", "server")
    for task in Path(f"/proc/{info['process_id']}/task").iterdir():
        os.sched_setaffinity(int(task.name), allowed)
