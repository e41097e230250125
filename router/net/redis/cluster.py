"""The backend for a cluster: each command goes to the server that holds its key.

Theory of operation. There is one connection to each primary. A batch is split by the slot map and sent to all of its
servers at once. A server that no longer holds a slot redirects: to the slot's new owner (MOVED), or to where this key
is while the slot is migrated (ASK). Redirected commands go there in a second round, in their order, and MOVED updates
the map.

A server that fails is marked as down alone: commands for it fail at once, without waiting, and the other servers are
still used. A repair task in the background then asks the remaining servers for the map and pings the failed one, until
every slot has a server that answers: the same one, or the replica that took over. Only the repair task opens
connections, except to the target of a redirection, so that a batch waits for no handshake.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import redis.exceptions

from router.net.redis.backend import ReplyFuture
from router.net.redis.commands import AfterPrevious, Command, EncodedAfterPrevious, EncodedCommand
from router.net.redis.deadline import Deadline
from router.net.redis.errors import RedisBackendError
from router.net.redis.replies import decode_reply
from router.net.redis.slots import SlotMap, command_slot, parse_slots
from router.net.redis.standalone import StandaloneBackend
from router.net.redis.url import HostPort
from router.net.tasks import cancel_and_wait

log = logging.getLogger("roundhouse.redis")

_MAX_REDIRECTS: Final = 5  # rounds after the first one; a bound for servers whose redirections form a loop
_MIN_RETRY_DELAY: Final = 0.1  # seconds between the first two attempts to repair; the delay doubles each time
_MAX_RETRY_DELAY: Final = 1.0


class _ClusterNode:
    """A primary, or a server that was one until a moment ago."""

    def __init__(self, host: HostPort, backend: StandaloneBackend) -> None:
        self.host = host
        self.backend = backend
        self.up = False
        self.used = True  # since the slot map was last applied
        self.busy = False  # a batch is in flight: the node must be neither connected to a second time nor closed

    async def execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float = 0.0
    ) -> list[Any]:
        """Returns the replies. A failure is a RedisBackendError in place of each, and marks the node as down."""
        self.busy = True
        try:
            replies = await self.backend.execute(commands, timeout, extra_time)
        except RedisBackendError as error:
            self.up = False
            return [error] * len(commands)
        finally:
            self.busy = False
        self.up = True
        return replies


class _RoutedCommand:
    """A command of a batch, with the server that it goes to next."""

    __slots__ = ("asking", "command", "index", "node", "slot")

    def __init__(self, index: int, command: Command | EncodedCommand, slot: int | None) -> None:
        self.index = index
        self.command = command
        self.slot = slot
        self.node: _ClusterNode | None = None
        self.asking = False


class ClusterBackend:
    """The backend for all primaries of a cluster, through one connection each."""

    def __init__(
        self, seeds: Sequence[HostPort], open_server: Callable[[HostPort], StandaloneBackend], *, timeout: float
    ) -> None:
        """`seeds`: the servers to ask first for the map. `timeout` in seconds, for connecting and for the map."""
        self._seeds = seeds
        self._open_server = open_server
        self._timeout = timeout
        self._nodes: dict[HostPort, _ClusterNode] = {}
        self._slot_owners: SlotMap = []
        self._slots_stale = True  # whether some part of the map is known to be wrong
        self._last_error = "no server of the cluster responds"
        self._repair_task: asyncio.Task[None] | None = None
        self._repair_attempted = asyncio.Event()

    @property
    def topology(self) -> object:
        return frozenset(self._nodes)

    @property
    def counts_receivers(self) -> bool:
        return False

    def execute(self, commands: Sequence[Command | EncodedCommand], timeout: float) -> ReplyFuture:
        return asyncio.get_running_loop().create_task(self._execute(commands, timeout))

    async def _execute(self, commands: Sequence[Command | EncodedCommand], timeout: float) -> list[Any]:
        deadline = Deadline(timeout)
        await self._ensure_servers(timeout)
        replies: list[Any] = [None] * len(commands)
        routed = [_RoutedCommand(index, command, command_slot(command)) for index, command in enumerate(commands)]
        # Servers do not wait for one another, so `after_previous` holds only if these go out after the other replies.
        immediate = [each for each in routed if not isinstance(each.command, AfterPrevious | EncodedAfterPrevious)]
        await self._send_with_redirects(immediate, replies, deadline)
        deferred = [each for each in routed if isinstance(each.command, AfterPrevious | EncodedAfterPrevious)]
        await self._send_with_redirects(deferred, replies, deadline)
        if self._slots_stale or not self._all_up():
            self._start_repair()
        if not self._any_up():
            raise next(
                (reply for reply in replies if isinstance(reply, RedisBackendError)),
                RedisBackendError(self._last_error),
            )
        return replies

    async def servers(self) -> list[StandaloneBackend]:
        # The listener asks because a connection was lost, so there may have been a failover.
        self._slots_stale = True
        await self._wait_for_repair(self._timeout)
        if not self._any_up():
            raise RedisBackendError(self._last_error)
        # Servers that are down are included: while one of them cannot be tracked, changes may be missed.
        return [node.backend for node in self._nodes.values()]

    async def aclose(self) -> None:
        await cancel_and_wait(self._repair_task)
        await asyncio.gather(*(node.backend.aclose() for node in self._nodes.values()))
        self._nodes.clear()

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _any_up(self) -> bool:
        return any(node.up for node in self._nodes.values())

    def _all_up(self) -> bool:
        return bool(self._nodes) and all(node.up for node in self._nodes.values())

    def _node_for_slot(self, slot: int | None) -> _ClusterNode | None:
        if slot is None:
            return next((node for node in self._nodes.values() if node.up), None)
        host = self._slot_owners[slot]
        return None if host is None else self._nodes[host]

    async def _send_with_redirects(self, pending: list[_RoutedCommand], replies: list[Any], deadline: Deadline) -> None:
        for routed in pending:
            routed.node = self._node_for_slot(routed.slot)
        for _ in range(1 + _MAX_REDIRECTS):
            if not pending:
                break
            await self._send_round(pending, replies, deadline)
            if not any(isinstance(replies[routed.index], RedisBackendError) for routed in pending):
                deadline.extend()
            pending = [routed for routed in pending if self._follow_redirect(routed, replies[routed.index])]

    async def _send_round(self, pending: Iterable[_RoutedCommand], replies: list[Any], deadline: Deadline) -> None:
        by_node: dict[_ClusterNode, list[_RoutedCommand]] = {}
        for routed in pending:
            if routed.node is None or not routed.node.up:
                replies[routed.index] = RedisBackendError("the server that holds the key does not respond")
                self._slots_stale = True
            elif deadline.remaining() <= 0:
                replies[routed.index] = RedisBackendError("timeout before the command was sent to the key's server")
            else:
                by_node.setdefault(routed.node, []).append(routed)
        sends = [self._send_to_node(node, commands, replies, deadline) for node, commands in by_node.items()]
        if len(sends) == 1:
            await sends[0]
        elif sends:
            await asyncio.gather(*sends)

    @staticmethod
    async def _send_to_node(
        node: _ClusterNode, pending: Sequence[_RoutedCommand], replies: list[Any], deadline: Deadline
    ) -> None:
        commands: list[Command | EncodedCommand] = []
        positions: list[int] = []  # of each pending command among `commands`, since ASKING has a reply of its own
        for routed in pending:
            if routed.asking:
                commands.append(("ASKING",))
            positions.append(len(commands))
            commands.append(routed.command)
        node.used = True
        node_replies = await node.execute(commands, deadline.remaining(), deadline.extra_time())
        for routed, position in zip(pending, positions, strict=True):
            replies[routed.index] = node_replies[position]

    def _follow_redirect(self, command: _RoutedCommand, reply: Any) -> bool:
        """Whether the reply is a redirection; if so, the command has its new node."""
        if isinstance(reply, redis.exceptions.ClusterDownError):
            self._slots_stale = True
        if not isinstance(reply, redis.exceptions.AskError):  # MovedError is a subclass
            return False
        assert command.node is not None
        # A redirection without a host means the host that sent it, with the new port.
        host = (reply.host or command.node.host[0], reply.port)
        command.node = self._nodes.get(host) or self._add_node(host)
        if not command.node.busy:  # busy: the repair task is connecting to it
            command.node.up = True  # the cluster has just named it, so the command is sent and not failed at once
        # ASK is for this one command and does not change the map; MOVED does, and other slots may have moved as well.
        command.asking = not isinstance(reply, redis.exceptions.MovedError)
        if not command.asking:
            self._slot_owners[reply.slot_id] = host
            self._slots_stale = True
        return True

    def _add_node(self, host: HostPort) -> _ClusterNode:
        node = self._nodes[host] = _ClusterNode(host, self._open_server(host))
        return node

    # -- the servers and the slot map ---------------------------------------------------------------------------------

    async def _ensure_servers(self, timeout: float) -> None:
        if self._any_up() and self._slot_owners:
            return
        await self._wait_for_repair(timeout)
        if not self._any_up():
            raise RedisBackendError(self._last_error)

    async def _wait_for_repair(self, timeout: float) -> None:
        """Waits until the repair task has made one more attempt, or until the timeout."""
        self._start_repair()
        self._repair_attempted.clear()  # a new task has not run yet, so this clears earlier attempts only
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._repair_attempted.wait(), timeout)

    def _start_repair(self) -> None:
        if self._repair_task is None or self._repair_task.done():
            self._repair_task = asyncio.get_running_loop().create_task(self._repair())

    async def _repair(self) -> None:
        delay = _MIN_RETRY_DELAY
        if self._all_up():  # only a redirection started the repair; more slots may be moving, so wait a moment
            await asyncio.sleep(delay)
        while True:
            try:
                if self._slots_stale:
                    await self._refresh_slots()
                await asyncio.gather(*(self._connect_node(node) for node in self._nodes.values()))
            except RedisBackendError as error:
                self._last_error = str(error)
            except Exception:
                # The last line of defence: neither a defect nor a reply that makes no sense may end the repair.
                log.exception("cannot discover the servers of the cluster")
            self._repair_attempted.set()
            if not self._slots_stale and self._all_up():
                return
            await asyncio.sleep(delay)
            delay = min(2 * delay, _MAX_RETRY_DELAY)
            self._slots_stale = True  # a replica may have taken over from the server that does not answer

    async def _refresh_slots(self) -> None:
        """Asks one server after the other for the map. Raises RedisBackendError if none replies with one."""
        known = sorted(self._nodes.values(), key=lambda node: not node.up)
        hosts = list(dict.fromkeys([*(node.host for node in known if node.up), *self._seeds, *self._nodes]))
        last_error = RedisBackendError("no server of the cluster responds")
        for host in hosts:
            server = self._open_server(host)  # a connection of its own: the node's may have a batch in flight
            try:
                (reply,) = await server.execute([("CLUSTER", "SLOTS")], self._timeout / len(hosts))
            except RedisBackendError as error:
                last_error = error
                continue
            finally:
                await server.aclose()
            if isinstance(reply, Exception):
                last_error = RedisBackendError(str(reply))
                continue
            try:
                slot_owners = decode_reply(partial(parse_slots, asked_host=host[0]), reply)
            except RedisBackendError as error:
                last_error = error
                continue
            self._slots_stale = False
            await self._apply_slots(slot_owners)
            return
        raise last_error

    async def _apply_slots(self, slot_owners: SlotMap) -> None:
        named = {owner for owner in slot_owners if owner is not None}
        # A node that the map does not name stays while it is busy, or while it is up and was used since the last map:
        # it may be the target of a redirection that this map does not show yet.
        gone = [node for node in self._nodes.values()
                if node.host not in named and not node.busy and not (node.up and node.used)]  # fmt: skip
        for host in named - self._nodes.keys():
            self._add_node(host)
        for node in gone:
            del self._nodes[node.host]
        for node in self._nodes.values():
            node.used = False
        self._slot_owners = slot_owners
        if None in slot_owners:
            self._slots_stale = True
        # Last, and with no reference left in the map: this awaits, and a batch may be routed meanwhile.
        for node in gone:
            await node.backend.aclose()

    async def _connect_node(self, node: _ClusterNode) -> None:
        if node.up or node.busy:
            return
        (reply,) = await node.execute([("PING",)], self._timeout)
        if isinstance(reply, RedisBackendError):
            self._last_error = str(reply)
