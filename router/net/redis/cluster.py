"""The link to a cluster: each command goes to the server that holds its key.

Theory of operation. There is one connection to each primary. A batch is split by the map of the slots and sent to all
of its servers at once; a server that no longer holds a slot says where the slot is (MOVED), or where this key is while
the slot is being moved (ASK), and its commands go there in a second round, in their order. The map learns from that.

A server that fails is out of service by itself: what belongs to it fails at once, without waiting, and the others go
on. A task in the background then asks the servers that are left for the map, and tries the one that failed, until
every slot has a server that answers: the same one, or the replica that took over. It alone opens connections, except
to where a redirection leads, so that the batch waits for no handshake.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import redis.exceptions

from router.net.redis.backend import ReplyFuture
from router.net.redis.commands import AfterPrevious, Command, EncodedAfterPrevious, EncodedCommand
from router.net.redis.deadline import Deadline
from router.net.redis.errors import RedisBackendError
from router.net.redis.slots import SlotMap, command_slot, parse_slots
from router.net.redis.standalone import StandaloneBackend
from router.net.redis.url import HostPort
from router.net.tasks import cancel_and_wait

log = logging.getLogger("roundhouse.redis")

_MAX_REDIRECTS: Final = 5
_MIN_RETRY_DELAY: Final = 0.1  # seconds between two attempts to mend; it doubles up to
_MAX_RETRY_DELAY: Final = 1.0


class _ClusterNode:
    """A primary, or what was one a moment ago."""

    def __init__(self, host: HostPort, backend: StandaloneBackend) -> None:
        self.host = host
        self.backend = backend
        self.up = False
        self.used = True  # since the map was last learnt
        self.busy = False

    async def execute(
        self, commands: Sequence[Command | EncodedCommand], timeout: float, extra_time: float = 0.0
    ) -> list[Any]:
        """The replies; LinkErrors in their places where it fails, which puts it out of service."""
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
    """A command on its way."""

    __slots__ = ("asking", "command", "index", "node", "slot")

    def __init__(self, index: int, command: Command | EncodedCommand, slot: int | None) -> None:
        self.index = index
        self.command = command
        self.slot = slot
        self.node: _ClusterNode | None = None
        self.asking = False


class ClusterBackend:
    """The link to all primaries of a cluster, through one connection each."""

    def __init__(
        self, seeds: Sequence[HostPort], open_server: Callable[[HostPort], StandaloneBackend], *, timeout: float
    ) -> None:
        """`seeds`: where to ask first for the servers. `timeout` in seconds, for connecting and for the map."""
        self._seeds = seeds
        self._open_server = open_server
        self._timeout = timeout
        self._nodes: dict[HostPort, _ClusterNode] = {}
        self._slot_owners: SlotMap = []
        self._slots_stale = True  # whether the map is known to be wrong somewhere
        self._last_error = "no server of the cluster answers"
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
        sendings = [_RoutedCommand(place, command, command_slot(command)) for place, command in enumerate(commands)]
        at_once = [one for one in sendings if not isinstance(one.command, AfterPrevious | EncodedAfterPrevious)]
        await self._send_with_redirects(at_once, replies, deadline)
        afterwards = [one for one in sendings if isinstance(one.command, AfterPrevious | EncodedAfterPrevious)]
        await self._send_with_redirects(afterwards, replies, deadline)
        if self._slots_stale or not self._all_up():
            self._start_repair()
        if not self._any_up():
            raise next(
                (reply for reply in replies if isinstance(reply, RedisBackendError)),
                RedisBackendError(self._last_error),
            )
        return replies

    async def servers(self) -> list[StandaloneBackend]:
        # Somebody asks because a connection was lost; there may have been a failover.
        self._slots_stale = True
        await self._wait_for_repair(self._timeout)
        if not self._any_up():
            raise RedisBackendError(self._last_error)
        # A server that does not answer belongs to them: as long as it cannot be heard, not every change is told.
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
        """Sends each to where it belongs, and from there on to where it is sent."""
        for sending in pending:
            sending.node = self._node_for_slot(sending.slot)
        for _ in range(1 + _MAX_REDIRECTS):
            if not pending:
                break
            await self._send_round(pending, replies, deadline)
            if not any(isinstance(replies[sending.index], RedisBackendError) for sending in pending):
                deadline.extend()
            pending = [sending for sending in pending if self._follow_redirect(sending, replies[sending.index])]

    async def _send_round(self, pending: Iterable[_RoutedCommand], replies: list[Any], deadline: Deadline) -> None:
        """Sends each to its node, those of a node together, and puts the replies in their places."""
        by_node: dict[_ClusterNode, list[_RoutedCommand]] = {}
        for sending in pending:
            if sending.node is None or not sending.node.up:
                replies[sending.index] = RedisBackendError("the server that holds the key does not answer")
                self._slots_stale = True
            elif deadline.remaining() <= 0:
                replies[sending.index] = RedisBackendError("no time was left to ask the server that holds the key")
            else:
                by_node.setdefault(sending.node, []).append(sending)
        parts = [self._send_to_node(node, part, replies, deadline) for node, part in by_node.items()]
        if len(parts) == 1:
            await parts[0]
        elif parts:
            await asyncio.gather(*parts)

    @staticmethod
    async def _send_to_node(
        node: _ClusterNode, pending: Sequence[_RoutedCommand], replies: list[Any], deadline: Deadline
    ) -> None:
        commands: list[Command | EncodedCommand] = []
        places: list[int] = []
        for sending in pending:
            if sending.asking:
                commands.append(("ASKING",))
            places.append(len(commands))
            commands.append(sending.command)
        node.used = True
        answers = await node.execute(commands, deadline.remaining(), deadline.extra_time())
        for sending, place in zip(pending, places, strict=True):
            replies[sending.index] = answers[place]

    def _follow_redirect(self, command: _RoutedCommand, reply: Any) -> bool:
        """Whether the reply sends a command elsewhere; it then knows where to go."""
        if isinstance(reply, redis.exceptions.ClusterDownError):
            self._slots_stale = True
        if not isinstance(reply, redis.exceptions.AskError):  # which MovedError is, too
            return False
        assert command.node is not None
        # A server that does not know its own name means the host that was asked.
        host = (reply.host or command.node.host[0], reply.port)
        command.node = self._nodes.get(host) or self._add_node(host)
        if not command.node.busy:  # else it is being connected to
            command.node.up = True  # somebody has just said that it is there
        command.asking = not isinstance(reply, redis.exceptions.MovedError)
        if not command.asking:
            self._slot_owners[reply.slot_id] = host
            self._slots_stale = True
        return True

    def _add_node(self, host: HostPort) -> _ClusterNode:
        node = self._nodes[host] = _ClusterNode(host, self._open_server(host))
        return node

    # -- the servers, and who holds what ------------------------------------------------------------------------------

    async def _ensure_servers(self, timeout: float) -> None:
        if self._any_up() and self._slot_owners:
            return
        await self._wait_for_repair(timeout)
        if not self._any_up():
            raise RedisBackendError(self._last_error)

    async def _wait_for_repair(self, timeout: float) -> None:
        """Waits until the servers have been looked for once more, or for the time given."""
        self._start_repair()
        self._repair_attempted.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._repair_attempted.wait(), timeout)

    def _start_repair(self) -> None:
        if self._repair_task is None or self._repair_task.done():
            self._repair_task = asyncio.get_running_loop().create_task(self._repair())

    async def _repair(self) -> None:
        pause = _MIN_RETRY_DELAY
        if self._all_up():  # a redirection has been obeyed, and more are to come where one was
            await asyncio.sleep(pause)
        while True:
            try:
                if self._slots_stale:
                    await self._refresh_slots()
                await asyncio.gather(*(self._connect_node(node) for node in self._nodes.values()))
            except RedisBackendError as error:
                self._last_error = str(error)
            except Exception:
                # A defect here, or a server that answers like none, must not end the looking.
                log.exception("the servers of the cluster cannot be found")
            self._repair_attempted.set()
            if not self._slots_stale and self._all_up():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_DELAY)
            self._slots_stale = True  # what does not answer may have been replaced

    async def _refresh_slots(self) -> None:
        """Asks one server after the other for the map. Raises LinkError where nobody gives one."""
        known = sorted(self._nodes.values(), key=lambda node: not node.up)
        hosts = list(dict.fromkeys([*(node.host for node in known if node.up), *self._seeds, *self._nodes]))
        fault = RedisBackendError("no server of the cluster answers")
        for host in hosts:
            asked = self._open_server(host)  # a connection of its own, since a batch may be on its way
            try:
                (reply,) = await asked.execute([("CLUSTER", "SLOTS")], self._timeout / len(hosts))
            except RedisBackendError as error:
                fault = error
                continue
            finally:
                await asked.aclose()
            if isinstance(reply, Exception):
                fault = RedisBackendError(str(reply))
                continue
            self._slots_stale = False
            await self._apply_slots(parse_slots(reply, host[0]))
            return
        raise fault

    async def _apply_slots(self, slot_owners: SlotMap) -> None:
        named = {owner for owner in slot_owners if owner is not None}
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
        for node in gone:
            await node.backend.aclose()

    async def _connect_node(self, node: _ClusterNode) -> None:
        if node.up or node.busy:
            return
        (reply,) = await node.execute([("PING",)], self._timeout)
        if isinstance(reply, RedisBackendError):
            self._last_error = str(reply)
