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

from router.net.redis.backend import Answer
from router.net.redis.commands import Command, Later, Packed, PackedLater
from router.net.redis.deadline import Deadline
from router.net.redis.errors import LinkError
from router.net.redis.slots import SlotMap, read_slots, slot_of
from router.net.redis.standalone import ServerLink
from router.net.redis.url import Host
from router.net.tasks import end

log = logging.getLogger("roundhouse.redis")

_REDIRECTIONS: Final = 5
_PAUSE: Final = 0.1  # seconds between two attempts to mend; it doubles up to
_LONGEST_PAUSE: Final = 1.0


class _Node:
    """A primary, or what was one a moment ago."""

    def __init__(self, host: Host, link: ServerLink) -> None:
        self.host = host
        self.link = link
        self.up = False
        self.used = True  # since the map was last learnt
        self.busy = False

    async def execute(self, commands: Sequence[Command | Packed], timeout: float, more: float = 0.0) -> list[Any]:
        """The replies; LinkErrors in their places where it fails, which puts it out of service."""
        self.busy = True
        try:
            replies = await self.link.execute(commands, timeout, more)
        except LinkError as error:
            self.up = False
            return [error] * len(commands)
        finally:
            self.busy = False
        self.up = True
        return replies


class _Sending:
    """A command on its way."""

    __slots__ = ("asking", "command", "node", "place", "slot")

    def __init__(self, place: int, command: Command | Packed, slot: int | None) -> None:
        self.place = place
        self.command = command
        self.slot = slot
        self.node: _Node | None = None
        self.asking = False


class ClusterLink:
    """The link to all primaries of a cluster, through one connection each."""

    def __init__(self, seeds: Sequence[Host], open_server: Callable[[Host], ServerLink], *, timeout: float) -> None:
        """`seeds`: where to ask first for the servers. `timeout` in seconds, for connecting and for the map."""
        self._seeds = seeds
        self._open = open_server
        self._timeout = timeout
        self._nodes: dict[Host, _Node] = {}
        self._owners: SlotMap = []
        self._stale = True  # whether the map is known to be wrong somewhere
        self._fault = "no server of the cluster answers"
        self._mending: asyncio.Task[None] | None = None
        self._attempted = asyncio.Event()

    @property
    def topology(self) -> object:
        return frozenset(self._nodes)

    @property
    def counts_receivers(self) -> bool:
        return False

    def execute(self, commands: Sequence[Command | Packed], timeout: float) -> Answer:
        return asyncio.get_running_loop().create_task(self._execute(commands, timeout))

    async def _execute(self, commands: Sequence[Command | Packed], timeout: float) -> list[Any]:
        deadline = Deadline(timeout)
        await self._find_servers(timeout)
        replies: list[Any] = [None] * len(commands)
        sendings = [_Sending(place, command, slot_of(command)) for place, command in enumerate(commands)]
        at_once = [one for one in sendings if not isinstance(one.command, Later | PackedLater)]
        await self._send_all(at_once, replies, deadline)
        afterwards = [one for one in sendings if isinstance(one.command, Later | PackedLater)]
        await self._send_all(afterwards, replies, deadline)
        if self._stale or not self._all_up():
            self._mend()
        if not self._any_up():
            raise next((reply for reply in replies if isinstance(reply, LinkError)), LinkError(self._fault))
        return replies

    async def servers(self) -> list[ServerLink]:
        # Somebody asks because a connection was lost; there may have been a failover.
        self._stale = True
        await self._attempt(self._timeout)
        if not self._any_up():
            raise LinkError(self._fault)
        # A server that does not answer belongs to them: as long as it cannot be heard, not every change is told.
        return [node.link for node in self._nodes.values()]

    async def aclose(self) -> None:
        await end(self._mending)
        await asyncio.gather(*(node.link.aclose() for node in self._nodes.values()))
        self._nodes.clear()

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _any_up(self) -> bool:
        return any(node.up for node in self._nodes.values())

    def _all_up(self) -> bool:
        return bool(self._nodes) and all(node.up for node in self._nodes.values())

    def _node_of(self, slot: int | None) -> _Node | None:
        if slot is None:
            return next((node for node in self._nodes.values() if node.up), None)
        host = self._owners[slot]
        return None if host is None else self._nodes[host]

    async def _send_all(self, sendings: list[_Sending], replies: list[Any], deadline: Deadline) -> None:
        """Sends each to where it belongs, and from there on to where it is sent."""
        for sending in sendings:
            sending.node = self._node_of(sending.slot)
        for _ in range(1 + _REDIRECTIONS):
            if not sendings:
                break
            await self._send(sendings, replies, deadline)
            if not any(isinstance(replies[sending.place], LinkError) for sending in sendings):
                deadline.extend()
            sendings = [sending for sending in sendings if self._redirected(sending, replies[sending.place])]

    async def _send(self, sendings: Iterable[_Sending], replies: list[Any], deadline: Deadline) -> None:
        """Sends each to its node, those of a node together, and puts the replies in their places."""
        by_node: dict[_Node, list[_Sending]] = {}
        for sending in sendings:
            if sending.node is None or not sending.node.up:
                replies[sending.place] = LinkError("the server that holds the key does not answer")
                self._stale = True
            elif deadline.left() <= 0:
                replies[sending.place] = LinkError("no time was left to ask the server that holds the key")
            else:
                by_node.setdefault(sending.node, []).append(sending)
        parts = [self._send_to(node, part, replies, deadline) for node, part in by_node.items()]
        if len(parts) == 1:
            await parts[0]
        elif parts:
            await asyncio.gather(*parts)

    @staticmethod
    async def _send_to(node: _Node, sendings: Sequence[_Sending], replies: list[Any], deadline: Deadline) -> None:
        commands: list[Command | Packed] = []
        places: list[int] = []
        for sending in sendings:
            if sending.asking:
                commands.append(("ASKING",))
            places.append(len(commands))
            commands.append(sending.command)
        node.used = True
        answers = await node.execute(commands, deadline.left(), deadline.more())
        for sending, place in zip(sendings, places, strict=True):
            replies[sending.place] = answers[place]

    def _redirected(self, sending: _Sending, reply: Any) -> bool:
        """Whether the reply sends a command elsewhere; it then knows where to go."""
        if isinstance(reply, redis.exceptions.ClusterDownError):
            self._stale = True
        if not isinstance(reply, redis.exceptions.AskError):  # which MovedError is, too
            return False
        assert sending.node is not None
        # A server that does not know its own name means the host that was asked.
        host = (reply.host or sending.node.host[0], reply.port)
        sending.node = self._nodes.get(host) or self._add(host)
        if not sending.node.busy:  # else it is being connected to
            sending.node.up = True  # somebody has just said that it is there
        sending.asking = not isinstance(reply, redis.exceptions.MovedError)
        if not sending.asking:
            self._owners[reply.slot_id] = host
            self._stale = True
        return True

    def _add(self, host: Host) -> _Node:
        node = self._nodes[host] = _Node(host, self._open(host))
        return node

    # -- the servers, and who holds what ------------------------------------------------------------------------------

    async def _find_servers(self, timeout: float) -> None:
        if self._any_up() and self._owners:
            return
        await self._attempt(timeout)
        if not self._any_up():
            raise LinkError(self._fault)

    async def _attempt(self, timeout: float) -> None:
        """Waits until the servers have been looked for once more, or for the time given."""
        self._mend()
        self._attempted.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._attempted.wait(), timeout)

    def _mend(self) -> None:
        if self._mending is None or self._mending.done():
            self._mending = asyncio.get_running_loop().create_task(self._mend_until_well())

    async def _mend_until_well(self) -> None:
        pause = _PAUSE
        if self._all_up():  # a redirection has been obeyed, and more are to come where one was
            await asyncio.sleep(pause)
        while True:
            try:
                if self._stale:
                    await self._learn()
                await asyncio.gather(*(self._connect(node) for node in self._nodes.values()))
            except LinkError as error:
                self._fault = str(error)
            except Exception:
                # A defect here, or a server that answers like none, must not end the looking.
                log.exception("the servers of the cluster cannot be found")
            self._attempted.set()
            if not self._stale and self._all_up():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            self._stale = True  # what does not answer may have been replaced

    async def _learn(self) -> None:
        """Asks one server after the other for the map. Raises LinkError where nobody gives one."""
        known = sorted(self._nodes.values(), key=lambda node: not node.up)
        hosts = list(dict.fromkeys([*(node.host for node in known if node.up), *self._seeds, *self._nodes]))
        fault = LinkError("no server of the cluster answers")
        for host in hosts:
            asked = self._open(host)  # a connection of its own, since a batch may be on its way
            try:
                (reply,) = await asked.execute([("CLUSTER", "SLOTS")], self._timeout / len(hosts))
            except LinkError as error:
                fault = error
                continue
            finally:
                await asked.aclose()
            if isinstance(reply, Exception):
                fault = LinkError(str(reply))
                continue
            self._stale = False
            await self._adopt(read_slots(reply, host[0]))
            return
        raise fault

    async def _adopt(self, owners: SlotMap) -> None:
        named = {owner for owner in owners if owner is not None}
        gone = [node for node in self._nodes.values()
                if node.host not in named and not node.busy and not (node.up and node.used)]  # fmt: skip
        for host in named - self._nodes.keys():
            self._add(host)
        for node in gone:
            del self._nodes[node.host]
        for node in self._nodes.values():
            node.used = False
        self._owners = owners
        if None in owners:
            self._stale = True
        for node in gone:
            await node.link.aclose()

    async def _connect(self, node: _Node) -> None:
        if node.up or node.busy:
            return
        (reply,) = await node.execute([("PING",)], self._timeout)
        if isinstance(reply, LinkError):
            self._fault = str(reply)
