"""Redis of a scenario: the model of tests/simulation, its faults, and a client to look into it."""

from random import Random
from typing import Any, Final

import redis.asyncio as aioredis

from tests.simulation.loop import VirtualLoop
from tests.simulation.network import SimulatedNetwork
from tests.simulation.redis_model import RedisModel

_ADDRESS: Final = ("redis", 6379)


class WorldRedis:
    """One Redis server. `client` is redis-py's; `socket` is the path of its Unix socket.

    `read_only` and `is_full` make it refuse writes, as a replica and as a server without memory do.
    """

    def __init__(self, loop: VirtualLoop, network: SimulatedNetwork, random: Random) -> None:
        self.url = f"redis://{_ADDRESS[0]}:{_ADDRESS[1]}"
        self.socket = "redis.sock"
        self.model = RedisModel(loop, random)
        self.model.start()
        self.client: Any = aioredis.Redis(host=_ADDRESS[0], port=_ADDRESS[1], decode_responses=True)
        self._loop = loop
        self._network = network
        self.start()

    def start(self) -> None:
        """Accepts connections, as it does from the beginning."""
        self._network.servers[_ADDRESS] = self._network.servers[self.socket] = self.model

    def stop(self, *, loses_data: bool = True) -> None:
        """Closes all connections and refuses new ones, until it is started again."""
        for place in (_ADDRESS, self.socket):
            self._network.servers.pop(place, None)
        for wire in self._network.wires_of(self.model.process):
            wire.cut((0.0, 0.0))
        if loses_data:
            self.model.data.clear()

    def freeze(self) -> None:
        """Connections are accepted, and nothing is answered."""
        self._loop.freeze(self.model.process)

    def thaw(self) -> None:
        self._loop.thaw(self.model.process)

    @property
    def read_only(self) -> bool:
        return self.model.read_only

    @read_only.setter
    def read_only(self, value: bool) -> None:
        self.model.read_only = value

    @property
    def is_full(self) -> bool:
        return self.model.data.full

    @is_full.setter
    def is_full(self, value: bool) -> None:
        self.model.data.full = value
