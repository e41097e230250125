"""Redis in the deployments that people use, from real processes: one server, TLS, ACL users, Sentinels, a cluster."""

import asyncio
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree, which
from typing import Any, Final

from redis.crc import key_slot

from engines.redis_server import find_program
from tests.support.ports import free_port, is_free
from tests.support.redis_process import CannotStartError, RedisServer
from tests.support.waiting import eventually

SERVICE: Final = "roundhouse-master"
USER: Final = "roundhouse:sec%2Fret"
"""The user with minimal rights, as written in a URL."""

MINIMAL_ACL: Final = (
    "on", ">sec/ret", "resetchannels", "~rh:1:*", "&rh:1:*", "-@all",
    "+hello", "+ping", "+client|setname", "+client|tracking",
    "+role", "+info", "+cluster|slots", "+asking",
    "+exists", "+get", "+set", "+del", "+expire", "+pexpire", "+time",
    "+hget", "+hgetall", "+hset", "+hdel", "+hincrby", "+eval", "+lpush", "+ltrim", "+lrange",
    "+xadd", "+xrange", "+xrevrange", "+zincrby", "+zremrangebyrank", "+publish", "+subscribe",
    "+scan", "+type", "+pttl", "+memory|usage", "+hmget", "+unlink", "+zrevrange", "+zscore", "+zrem", "+wait",
    "+command",
)  # fmt: skip
SENTINEL_ACL: Final = (
    "on", ">ask", "resetchannels", "-@all", "+hello", "+ping", "+client|setname", "+sentinel|masters",
)  # fmt: skip
_SLOTS: Final = 16384
_NEVER: Final = 3_600_000  # milliseconds
DOWN_AFTER: Final = 1500
"""Milliseconds of silence after which Sentinels fail over, where a test wants that; NODE_TIMEOUT: of a cluster."""
NODE_TIMEOUT: Final = 1000

AnnouncedPort = Callable[[int], int]
"""Maps the port on which a server listens to the port that clients use; they differ behind a proxy."""


def same_port(port: int) -> int:
    return port


_FAST_SYNC: Final = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")


class Deployment:
    """One or several servers behind one URL."""

    def __init__(self, url: str, servers: Sequence[RedisServer]) -> None:
        self.url = url
        self.servers = servers

    async def start(self) -> None:
        """Returns once it is fully usable. Raises CannotStartError if a port is in use."""
        await asyncio.gather(*(server.start() for server in self.servers))

    def remove(self) -> None:
        for server in self.servers:
            server.remove()

    async def primary_of_key(self, key: str) -> RedisServer:
        return self.servers[0]

    async def primaries(self) -> list[RedisServer]:
        """The servers that together hold all keys."""
        return [self.servers[0]]

    async def is_healthy(self) -> bool:
        """Whether every server is up, and all agree which are primaries and which are replicas."""
        return bool(await self.servers[0].command("PING"))

    async def enable_failover(self) -> None:
        """From now on, a replica takes over from a primary that is silent. Not before: a busy machine may pause one."""


class SentinelGroup(Deployment):
    """A master, a replica, and three Sentinels."""

    def __init__(self, *options: str, announced: AnnouncedPort = same_port, down_after: int = _NEVER) -> None:
        """`options` apply to the master and the replica. `down_after`: milliseconds of silence before a failover."""
        ports = (free_port(), free_port())
        self._port_of = {announced(port): port for port in ports}
        master_port = announced(ports[0])
        common_options = (*_FAST_SYNC, "--user", "roundhouse", *MINIMAL_ACL, *options)
        master, replica = (
            RedisServer(*common_options, "--replica-announce-port", str(announced(port)), *extra_options, port=port)
            for port, extra_options in zip(ports, ((), ("--replicaof", "127.0.0.1", str(master_port))), strict=True)
        )
        conf = (
            f"sentinel monitor {SERVICE} 127.0.0.1 {master_port} 2\n"
            f"sentinel down-after-milliseconds {SERVICE} {down_after}\n"
            f"sentinel failover-timeout {SERVICE} 2000\n"
            f"user asker {' '.join(SENTINEL_ACL)}\n"
        )
        self.sentinels = [RedisServer("--sentinel", port=free_port(), conf=conf) for _ in range(3)]
        self._data = [master, replica]
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        sentinel_login = "sentinel_username=asker&sentinel_password=ask"
        super().__init__(f"redis+sentinel://{USER}@{hosts}/{SERVICE}?{sentinel_login}", [*self._data, *self.sentinels])

    async def start(self) -> None:
        await asyncio.gather(*(server.start() for server in self._data))
        # Replication first: a Sentinel checks a replica that is not ready again only after ten seconds.
        await eventually(self._is_replicated)
        await asyncio.gather(*(sentinel.start() for sentinel in self.sentinels))
        for sentinel in self.sentinels:
            await eventually(partial(self._sees_all, sentinel))

    async def primary_of_key(self, key: str) -> RedisServer:
        _, port = await self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self._data if server.port == self._port_of[int(port)])

    async def primaries(self) -> list[RedisServer]:
        return [await self.primary_of_key("")]

    async def is_healthy(self) -> bool:
        master = await self.primary_of_key("")
        for server in self._data:
            replication = await server.command("INFO", "replication")
            if server is master and replication["role"] != "master":
                return False
            if server is not master and not _is_linked(replication):
                return False
        return all([await self._sees_all(sentinel) for sentinel in self.sentinels])

    async def enable_failover(self) -> None:
        for sentinel in self.sentinels:
            await sentinel.command("SENTINEL", "SET", SERVICE, "down-after-milliseconds", DOWN_AFTER)

    @property
    def data(self) -> Sequence[RedisServer]:
        return self._data

    async def _is_replicated(self) -> bool:
        replication = await self._data[1].command("INFO", "replication")
        return bool(replication["master_link_status"] == "up")

    async def _sees_all(self, sentinel: RedisServer) -> bool:
        master = _pairs(await sentinel.command("SENTINEL", "MASTER", SERVICE))
        (replica, *_) = await sentinel.command("SENTINEL", "REPLICAS", SERVICE) or [{}]
        linked = _pairs(replica).get("master-link-status") == "ok"
        return linked and str(master["num-other-sentinels"]) == "2"


class Cluster(Deployment):
    """Three primaries with one replica each."""

    def __init__(
        self,
        *options: str,
        primaries: int = 3,
        replicas: int = 3,
        announced: AnnouncedPort = same_port,
        node_timeout: int = _NEVER,
    ) -> None:
        """`node_timeout`: milliseconds of silence before a failover."""
        timeout_option = ("--cluster-node-timeout", str(node_timeout))
        cluster_options = ("--cluster-enabled", "yes", *timeout_option, *_FAST_SYNC, *options)
        acl_options = ("--user", "roundhouse", *MINIMAL_ACL)
        ports: set[int] = set()
        while len(ports) < primaries + replicas:
            ports.add(free_cluster_port())
        self._port_of = {announced(port): port for port in ports}
        servers = [
            RedisServer(*cluster_options, *acl_options, "--cluster-announce-port", str(announced(port)), port=port)
            for port in ports
        ]
        self._primaries, self._replicas = servers[:primaries], servers[primaries:]
        hosts = ",".join(f"127.0.0.1:{announced(server.port)}" for server in servers[:2])
        super().__init__(f"redis+cluster://{USER}@{hosts}", servers)

    async def start(self) -> None:
        await super().start()
        first = self.servers[0]
        # Rounded up, so that the last primary covers the rest of the slots.
        share = -(-_SLOTS // len(self._primaries))
        for number, server in enumerate(self.servers):
            # Distinct epochs, as redis-cli sets them: nodes with equal epochs have to resolve the conflict first.
            await server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, server in enumerate(self._primaries):
            await server.command("CLUSTER", "ADDSLOTS", *range(number * share, min(_SLOTS, (number + 1) * share)))
        for server in self.servers[1:]:
            await server.command("CLUSTER", "MEET", "127.0.0.1", first.port)
        for server in self.servers:
            await eventually(partial(_says, server, f"cluster_known_nodes:{len(self.servers)}"))
        for primary, replica in zip(self._primaries, self._replicas, strict=False):
            await replica.command("CLUSTER", "REPLICATE", await self.id_of(primary))
        for server in self.servers:
            await eventually(partial(self._is_whole, server))

    @staticmethod
    def slot(key: str) -> int:
        slot: int = key_slot(key.encode())
        return slot

    async def primary_of_key(self, key: str) -> RedisServer:
        return await self.primary_of_slot(self.slot(key))

    async def primary_of_slot(self, slot: int) -> RedisServer:
        """The primary of a slot, as seen by a running server."""
        node = next(server for server in self.servers if server.is_running)
        for start, stop, (_, port, *_), *_ in await node.command("CLUSTER", "SLOTS"):
            if start <= slot <= stop:
                return next(server for server in self.servers if server.port == self._port_of[port])
        raise AssertionError(slot)

    async def primaries(self) -> list[RedisServer]:
        node = next(server for server in self.servers if server.is_running)
        ports = {port for _, _, (_, port, *_), *_ in await node.command("CLUSTER", "SLOTS")}
        return [server for server in self.servers if server.port in {self._port_of[port] for port in ports}]

    async def is_healthy(self) -> bool:
        for server in self.servers:
            if not await _says(server, "cluster_state:ok"):
                return False
            replication = await server.command("INFO", "replication")
            if replication["role"] != "master" and not _is_linked(replication):
                return False
            slots = await server.command("CLUSTER", "SLOTS")
            # A slot range is start, end, primary and then its replicas.
            if sum(len(slot_range) - 3 for slot_range in slots) < len(self._replicas):
                return False
        return True

    async def enable_failover(self) -> None:
        for server in self.servers:
            await server.command("CONFIG", "SET", "cluster-node-timeout", NODE_TIMEOUT)

    async def id_of(self, server: RedisServer) -> str:
        node_id: str = await server.command("CLUSTER", "MYID")
        return node_id

    async def move_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Moves a slot with its keys, as `redis-cli --cluster reshard` does."""
        source_id, target_id = await self.id_of(source), await self.id_of(target)
        await target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        await source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := await source.command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            for key in keys:
                await source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        for server in (target, source):
            await server.command("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    async def _is_whole(self, server: RedisServer) -> bool:
        if not await _says(server, "cluster_state:ok"):
            return False
        replication = await server.command("INFO", "replication")
        if server in self._replicas and replication.get("master_link_status") != "up":
            return False
        return sum(len(slot_range) - 3 for slot_range in await server.command("CLUSTER", "SLOTS")) == len(
            self._replicas
        )


class TlsCertificate:
    """A new certificate, used as the authority's, the server's and the client's."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rh-"))
        self.certificate, self.key = self.folder / "cert.pem", self.folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-subj", "/CN=roundhouse", "-addext", "subjectAltName=IP:127.0.0.1",
             "-keyout", str(self.key), "-out", str(self.certificate)],
            check=True, capture_output=True,
        )  # fmt: skip

    def options(self, port: int) -> tuple[str, ...]:
        """Options for a server that requires client certificates."""
        return ("--tls-port", str(port), "--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key),
                "--tls-ca-cert-file", str(self.certificate), "--tls-auth-clients", "yes")  # fmt: skip

    @property
    def query(self) -> str:
        """The client's options, as written in a URL."""
        return f"ssl_ca_certs={self.certificate}&ssl_certfile={self.certificate}&ssl_keyfile={self.key}"

    def remove(self) -> None:
        rmtree(self.folder)


class TLSServer(Deployment):
    def __init__(self) -> None:
        self.tls = TlsCertificate()
        port = free_port()
        server = RedisServer(*self.tls.options(port))
        super().__init__(f"rediss://127.0.0.1:{port}/0?{self.tls.query}", [server])

    def remove(self) -> None:
        super().remove()
        self.tls.remove()


class TLSSentinel(Deployment):
    """A master and one Sentinel, both with TLS."""

    def __init__(self) -> None:
        self.tls = TlsCertificate()
        port, sentinel_port = free_port(), free_port()
        master = RedisServer(*self.tls.options(port), "--tls-replication", "yes")
        conf = f"sentinel monitor {SERVICE} 127.0.0.1 {port} 1\n"
        sentinel = RedisServer("--sentinel", *self.tls.options(sentinel_port), "--tls-replication", "yes", conf=conf)
        url = f"rediss+sentinel://127.0.0.1:{sentinel_port}/{SERVICE}?{self.tls.query}"
        super().__init__(url, [master, sentinel])

    def remove(self) -> None:
        super().remove()
        self.tls.remove()


class TLSCluster(Deployment):
    """A cluster of one server, with TLS."""

    def __init__(self) -> None:
        self.tls = TlsCertificate()
        port = free_cluster_port()
        server = RedisServer(*self.tls.options(port), "--cluster-enabled", "yes", "--tls-cluster", "yes")
        super().__init__(f"rediss+cluster://127.0.0.1:{port}?{self.tls.query}", [server])

    async def start(self) -> None:
        await super().start()
        (server,) = self.servers
        await server.command("CLUSTER", "ADDSLOTS", *range(_SLOTS))
        await eventually(lambda: _says(server, "cluster_state:ok"))

    def remove(self) -> None:
        super().remove()
        self.tls.remove()


def tcp_server(*options: str, program: str = "redis-server", announced: AnnouncedPort = same_port) -> Deployment:
    server = RedisServer(*options, port=free_port(), program=program)
    return Deployment(f"redis://127.0.0.1:{announced(server.port)}", [server])


def acl_server() -> Deployment:
    """One server, with a user that has only the rights that the router needs."""
    server = RedisServer("--user", "roundhouse", *MINIMAL_ACL, port=free_port())
    return Deployment(f"redis://{USER}@127.0.0.1:{server.port}/0", [server])


def unix_server() -> Deployment:
    server = RedisServer()
    return Deployment(server.url, [server])


DEPLOYMENTS: Final[Mapping[str, Callable[[], Deployment]]] = {
    "tcp": tcp_server,
    "unix": unix_server,
    "least-rights": acl_server,
    "tls": TLSServer,
    "sentinel": SentinelGroup,
    "tls-sentinel": TLSSentinel,
    "cluster": Cluster,
    "tls-cluster": TLSCluster,
    "valkey": lambda: tcp_server(program="valkey-server"),
}

StartDeployment = Callable[[str], Awaitable[Any]]
"""Starts a deployment by its name, for a test that breaks it."""


def unavailable_reason(name: str) -> str | None:
    """The reason why a deployment cannot run on this machine, if there is one."""
    if name == "valkey" and which("valkey-server") is None:
        return "there is no valkey-server on this machine"
    if name.startswith("tls"):
        if which("openssl") is None:
            return "there is no openssl on this machine to make certificates with"
        argv = [find_program("redis-server"), "--port", "0", "--tls-port", "0"]  # exits at once in either case
        if b"Bad directive" in subprocess.run(argv, capture_output=True, check=False, timeout=10).stderr:
            return "this machine's Redis was built without TLS"
    return None


async def start_deployment(name: str) -> Deployment:
    """Starts a deployment; tries other ports if another process has taken one of them."""
    # free_port() and the server's bind are not atomic.
    for _ in range(4):
        deployment = DEPLOYMENTS[name]()
        try:
            await deployment.start()
        except CannotStartError:
            deployment.remove()
        except BaseException:
            deployment.remove()
            raise
        else:
            return deployment
    raise CannotStartError


async def _says(server: RedisServer, line: str) -> bool:
    return line in str(await server.command("CLUSTER", "INFO")).split()


def _is_linked(replication: Any) -> bool:
    return bool(replication["role"] == "slave" and replication["master_link_status"] == "up")


def _pairs(reply: Any) -> dict[str, Any]:
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def free_cluster_port() -> int:
    """A free port p for which p + 10000, the port of the cluster bus, is free too."""
    while not is_free((port := free_port()) + 10_000):
        pass
    return port
