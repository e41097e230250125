"""Asks the deployment behind `cache.url`: a server, the Sentinels and their master, or the primaries of a cluster."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from router.checks.engine_findings import is_loopback
from router.checks.finding import Problem
from router.checks.redis_facts import RedisFacts, ServerFacts
from router.checks.redis_questions import CannotAskError, ask, ask_server, connected, written_host
from router.net.redis.commands import Command
from router.net.redis.url import HostPort, RedisUrl, parse_redis_url
from router.settings import Settings, tenants

_MOST_NAMES: Final = 8
_NO_CLUSTER: Final = "cluster support disabled"


async def ask_redis(settings: Settings, *, timeout: float) -> RedisFacts:
    """`timeout` in seconds, for each connection and reply."""
    address = parse_redis_url(settings.redis_url)
    facts = RedisFacts(
        kind=address.kind,
        has_password=address.password is not None,
        remote=not all(is_loopback(name) for name, _ in address.hosts),
    )
    try:
        return await _ask(address, facts, tenants(settings), timeout)
    except CannotAskError as error:
        return msgspec.structs.replace(facts, problem=error.problem)


async def _ask(address: RedisUrl, facts: RedisFacts, names: Sequence[str], timeout: float) -> RedisFacts:
    hosts: Sequence[HostPort | None] = [address.hosts[0] if address.hosts else None]
    partial: list[Problem] = []
    if address.kind == "sentinel":
        master, partial = await _find_master(address, timeout)
        hosts = [master]
    elif address.kind == "cluster":
        hosts, partial = await _find_primaries(address, timeout)
    servers = []
    for server in await asyncio.gather(*(_ask_server(address, host, names, timeout) for host in hosts)):
        if isinstance(server, ServerFacts):
            servers.append(server)
        else:
            partial.append(server)
    if not servers:
        raise CannotAskError(partial[-1])
    if (problem := _wrong_mode(address, servers[0])) is not None:
        raise CannotAskError(problem)
    return msgspec.structs.replace(facts, servers=tuple(servers), partial=tuple(partial))


async def _ask_server(
    address: RedisUrl, host: HostPort | None, names: Sequence[str], timeout: float
) -> ServerFacts | Problem:
    try:
        return await ask_server(address, host, names, timeout=timeout)
    except CannotAskError as error:
        if address.kind not in ("sentinel", "cluster") or host is None:
            return error.problem
        announced = "the master that the Sentinels announce" if address.kind == "sentinel" else "the cluster's primary"
        return error.problem._replace(note=f"{announced}, {written_host(host)}: {error.problem.note}")


def _wrong_mode(address: RedisUrl, server: ServerFacts) -> Problem | None:
    mode = server.info.get("redis_mode")
    if address.kind in ("server", "socket"):
        if mode == "sentinel":
            fix = "write redis+sentinel at the URL's start, and the master's name at its end"
            return Problem("is a Sentinel and holds no keys", fix)
        if mode == "cluster":
            return Problem("is a server of a cluster", "write redis+cluster at the URL's start")
    if server.info.get("role", "master") != "master":
        return Problem("it is a read-only replica", "correct the host to the primary's")
    return None


async def _find_master(address: RedisUrl, timeout: float) -> tuple[HostPort, list[Problem]]:
    """The master, and the problems of Sentinels that do not know it. Raises CannotAskError."""
    answers = await _ask_seeds(address, ("SENTINEL", "MASTERS"), timeout)
    problems: list[Problem] = []
    found: list[HostPort] = []
    for host, answer in zip(address.hosts, answers, strict=True):
        name = f"the Sentinel {written_host(host)}"
        if isinstance(answer, Problem):
            problems.append(answer._replace(note=f"{name}: {answer.note}"))
        elif isinstance(answer, Exception):
            problems.append(_no_sentinel(name, str(answer)))
        else:
            masters = {_text(master[b"name"]): master for master in map(_pairs, answer)}
            if (master := masters.get(address.service)) is not None:
                found.append((_text(master[b"ip"]), int(master[b"port"])))
            else:
                problems.append(_no_master(name, address.service, list(masters)))
    if not found:
        raise CannotAskError(problems[0])
    return found[0], problems


def _no_sentinel(name: str, refusal: str) -> Problem:
    if "no permissions" in refusal:
        return Problem(f"{name} does not let this user ask for masters", "ACL SETUSER USER +sentinel|masters, there")
    fix = "write redis in place of redis+sentinel, or correct the port"
    return Problem(f"{name} is a Redis server, no Sentinel", fix)


def _no_master(name: str, service: str, known: list[str]) -> Problem:
    names = ", ".join(sorted(known)[:_MOST_NAMES]) or "none"
    return Problem(f"{name} knows no master {service!r}; it knows {names}", "correct the name at the URL's end")


async def _find_primaries(address: RedisUrl, timeout: float) -> tuple[list[HostPort], list[Problem]]:
    """The primaries, and the problems of seeds. Raises CannotAskError."""
    answers = await _ask_seeds(address, ("CLUSTER", "SLOTS"), timeout)
    problems: list[Problem] = []
    for host, answer in zip(address.hosts, answers, strict=True):
        name = f"the server {written_host(host)}"
        if isinstance(answer, Problem):
            problems.append(answer._replace(note=f"{name}: {answer.note}"))
        elif isinstance(answer, Exception):
            problems.append(_no_cluster(name, str(answer)))
        elif answer:
            # A server that does not know its own address gives none, and is known by the one that it was asked at.
            primaries = dict.fromkeys((_text(row[2][0] or host[0].encode()), int(row[2][1])) for row in answer)
            return list(primaries), problems
        else:
            problems.append(Problem(f"{name} is of a cluster without slots", "create the cluster: redis-cli --cluster"))
    raise CannotAskError(problems[0])


def _no_cluster(name: str, refusal: str) -> Problem:
    if _NO_CLUSTER in refusal:
        return Problem(f"{name} is no member of a cluster", "write redis in place of redis+cluster at the URL's start")
    return Problem(f"{name} does not let this user ask for the slots", "ACL SETUSER USER +cluster|slots")


async def _ask_seeds(address: RedisUrl, command: Command, timeout: float) -> list[Any]:
    """For each host of the URL: the reply, which may be an exception, or the problem."""
    return list(await asyncio.gather(*(_ask_seed(address, host, command, timeout) for host in address.hosts)))


async def _ask_seed(address: RedisUrl, host: HostPort, command: Command, timeout: float) -> Any:
    try:
        async with connected(address, host, timeout=timeout, to_sentinel=address.kind == "sentinel") as connection:
            (reply,) = await ask(connection, command)
            return reply
    except CannotAskError as error:
        return error.problem


def _pairs(reply: Any) -> dict[bytes, bytes]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
