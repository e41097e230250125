"""The faults: what each does to a world, for how long, and whether requests may fail because of it."""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Final

from tests.simulation.clock import CLOCK
from tests.simulation.history import FOREVER, Poison
from tests.simulation.invariants import PURGE_DELAY
from tests.simulation.network import CLIENT, SERVER, Wire
from tests.simulation.plan import POISONS
from tests.simulation.routers import TENANTS, SimulatedRouter

if TYPE_CHECKING:
    from tests.simulation.world import World

_MOST_BROKEN_STREAMS: Final = 4
_STOPPED: Final = 12.0  # seconds; two failed checks take up to 8
_CHECK_INTERVAL: Final = 4.0  # seconds; more than routers take to check an engine again
_LEFT_REQUESTS: Final = 100
SILENCE: Final = 17.0  # seconds; more than `between_tokens`
_LONG: Final = 1000.0  # seconds; longer than any history

ApplyFault = Callable[["World", Random], None]


def _wires(world: "World") -> list[Wire]:
    """The connections to Redis, from routers and operators."""
    return [wire for wire in world.network.wires.values() if wire.ends[SERVER].process is world.redis.process]


def _router(world: "World", random: Random) -> SimulatedRouter | None:
    alive = [router for router in world.routers if router.ready and router.process.is_running]
    return random.choice(alive) if alive else None


def _stall(world: "World", seconds: float, *, breaks: bool) -> None:
    """Redis does nothing for a while; commands wait."""
    process = world.redis.process
    if process.frozen:
        return
    # While it is unknown what was purged, each router joins only generations of the last second, and begins another.
    leases = len(world.routers) * (1 + int(seconds / PURGE_DELAY))
    world.record_fault("stall", "redis", seconds, breaks=breaks, leases=leases)
    world.loop.freeze(process)
    world.after(seconds, world.loop.thaw, process)


def stall(world: "World", random: Random) -> None:
    _stall(world, random.choice((0.03, 0.1, 0.3, 0.65)) * (0.8 + 0.4 * random.random()), breaks=False)


def long_stall(world: "World", random: Random) -> None:
    _stall(world, 0.8 + 4 * random.random(), breaks=True)


def cut(world: "World", random: Random) -> None:
    """A connection to Redis breaks now. Data on their way may arrive; each side may notice late."""
    wires = _wires(world)
    if wires:
        wire = random.choice(wires)
        _cut(world, wire, random)
        world.record_fault("cut", repr(wire), 0.6, breaks=False, leases=1)


def _cut(world: "World", wire: Wire, random: Random) -> None:
    for side in (CLIENT, SERVER):
        if random.random() < 0.5:
            wire.lose(side)
    wire.cut((_notice_delay(random), _notice_delay(random)))
    world.trace(f"{wire} is cut")


def _notice_delay(random: Random) -> float:
    return random.choice((0.0, 0.002, 0.3)) * random.random()


def lose_commands_or_reply(world: "World", random: Random) -> None:
    """The next commands of a connection, or only the replies to them, are lost; then the connection breaks."""
    wires = [wire for wire in _wires(world) if wire.fault is None]
    if not wires:
        return
    wire, applied = random.choice(wires), random.random() < 0.7

    def fault(wire: Wire, data: bytes) -> bool:
        world.record_fault("lost reply" if applied else "lost command", repr(wire), 0.6, breaks=False, leases=1)
        if applied:
            wire.transmit(CLIENT, data)
            wire.hold(SERVER, CLOCK.now + _LONG)
        world.after(0.01 + 0.05 * random.random(), _cut, world, wire, random)
        return False

    wire.fault = fault


def hold(world: "World", random: Random) -> None:
    """The next commands of a connection, or their replies, arrive late."""
    wires = [wire for wire in _wires(world) if wire.fault is None]
    if not wires:
        return
    wire, side = random.choice(wires), random.choice((CLIENT, SERVER))
    seconds = random.choice((0.06, 0.2, 1.0, 3.0)) * random.random()

    def fault(wire: Wire, data: bytes) -> bool:
        world.record_fault(
            "held commands" if side == CLIENT else "held replies", repr(wire), seconds, breaks=False, leases=1
        )
        wire.hold(side, CLOCK.now + seconds)
        return True

    wire.fault = fault


def silence(world: "World", random: Random) -> None:
    """A connection delivers nothing for a while, in one direction or in both."""
    wires = _wires(world)
    if wires:
        wire, seconds = random.choice(wires), 0.05 + 1.5 * random.random()
        for side in random.choice(((CLIENT,), (SERVER,), (CLIENT, SERVER))):
            wire.hold(side, CLOCK.now + seconds)
        world.record_fault("silence", repr(wire), seconds, breaks=False, leases=1)


def slow(world: "World", random: Random) -> None:
    """All messages take longer for a while."""
    seconds, network = 0.5 + random.random(), world.network
    network.slow = random.choice((5.0, 15.0))
    world.record_fault("slowness", "network", seconds, breaks=False, leases=len(world.routers))
    world.after(seconds, setattr, network, "slow", 1.0)


def _freeze(world: "World", router: SimulatedRouter | None, seconds: float, *, breaks: bool) -> None:
    if router is not None:
        world.record_fault("freeze", router.name, seconds, breaks=breaks, leases=1)
        world.loop.freeze(router.process)
        world.after(seconds, world.loop.thaw, router.process)


def freeze(world: "World", random: Random) -> None:
    _freeze(world, _router(world, random), 0.05 + 0.4 * random.random(), breaks=False)


def long_freeze(world: "World", random: Random) -> None:
    _freeze(world, _router(world, random), 0.6 + 4 * random.random(), breaks=True)


def offset(world: "World", random: Random) -> None:
    """A router's wall clock has an offset from now on."""
    router = _router(world, random)
    if router is not None:
        router.process.offset = random.choice((-1, 1)) * random.choice((0.3, 5.0, 600.0))
        world.record_fault("clock offset", f"{router.name} {router.process.offset:g}", 0.0, breaks=False, leases=0)


def reload(world: "World", random: Random) -> None:
    router = _router(world, random)
    if router is not None:
        world.record_fault("reload", router.name, 0.2, breaks=False, leases=0)
        router.reload()


def clock_back(world: "World", random: Random) -> None:
    seconds = 0.2 + 3 * random.random()
    world.redis.offset -= seconds
    # Keys with an expiry live longer by that much, for example the lease of a killed process.
    world.record_fault("clock back", "redis", seconds, breaks=False, leases=0)


def lose_listener(world: "World", random: Random) -> None:
    """A router loses its listener connection and cannot open another for a while; its other connection stays."""
    router, seconds = _router(world, random), 0.5 + 3.5 * random.random()
    if router is not None:
        for connection in list(world.redis.connections.values()):
            wire = connection.wire
            if connection.prefixes and wire is not None and wire.ends[CLIENT].process is router.process:
                _cut(world, wire, random)
        world.network.unreachable[router.process.name] = CLOCK.now + seconds
        # If a fault of another kind breaks the other connection, the router cannot reach Redis at all.
        world.record_fault("deafness", router.name, seconds, breaks=len(world.plan.kinds) > 1, leases=2)


def partition(world: "World", random: Random) -> None:
    """A router cannot reach Redis, and gets no error."""
    router, seconds = _router(world, random), 0.6 + 3 * random.random()
    if router is not None:
        for wire in world.network.wires_of(router.process):
            if wire.ends[SERVER].process is world.redis.process:
                wire.hold(CLIENT, CLOCK.now + seconds)
                wire.hold(SERVER, CLOCK.now + seconds)
        world.network.unreachable[router.process.name] = CLOCK.now + seconds
        leases = 2 + int(seconds / PURGE_DELAY)  # as in `_stall`
        world.record_fault("partition", router.name, seconds, breaks=True, leases=leases)


def kill(world: "World", random: Random) -> None:
    """A router is killed, and a new one replaces it."""
    router = _router(world, random)
    if router is not None:
        world.record_fault("kill", router.name, 0.0, breaks=True, leases=1)
        world.kill(router)
        world.after(0.1 + random.random(), world.start_router, router.name.partition(".")[0])


def empty(world: "World", random: Random) -> None:
    """Redis loses all its data; the clock of its replacement may be behind."""
    if random.random() < 0.5:
        world.redis.offset -= 3 * random.random()
    world.redis.data.clear()
    world.redis.send_invalidations()
    world.entries_changed()
    world.record_fault("emptying", "redis", 0.5, breaks=True, leases=2 * len(world.routers))


def failover(world: "World", random: Random) -> None:
    """A replica without the last writes takes over; its clock may differ."""
    delay_back = random.random()
    world.fail_over(CLOCK.now - delay_back)
    world.redis.offset += random.choice((-0.5, 0.0, 0.5))
    world.record_fault("failover", f"redis, back by {delay_back:.3f}", 1.0, breaks=True, leases=2 * len(world.routers))
    for wire in _wires(world):
        _cut(world, wire, random)


def read_only(world: "World", random: Random) -> None:
    seconds = 0.2 + 2 * random.random()
    world.redis.read_only = True
    world.after(seconds, setattr, world.redis, "read_only", False)
    world.record_fault("read-only", "redis", seconds, breaks=True, leases=2 * len(world.routers))


def full(world: "World", random: Random) -> None:
    """Redis has no room: it refuses what may take memory, and still deletes."""
    seconds = 0.2 + 3 * random.random()
    world.redis.data.full = True
    world.after(seconds, setattr, world.redis.data, "full", False)
    # Without claims each router generates for itself, and begins anew once a purge may have gone unnoticed.
    leases = len(world.routers) * (2 + int(seconds / PURGE_DELAY))
    world.record_fault("full", "redis", seconds, breaks=True, leases=leases)


def refused(world: "World", random: Random) -> None:
    """An engine refuses the routers' key for a while."""
    chosen, seconds = random.choice(world.engines), 0.5 + 3 * random.random()
    chosen.refuses = True
    world.after(seconds, setattr, chosen, "refuses", False)
    # It is asked again when a check is let in. The followers of a leader that fails generate for themselves, without a
    # lease.
    leases = 2 * len(world.routers)
    world.record_fault("refused", chosen.process.name, seconds + _CHECK_INTERVAL, breaks=True, leases=leases)


def engine(world: "World", random: Random) -> None:
    """From now on, some generations break off; an engine may freeze as well."""
    world.engines_break = True
    seconds = random.choice((0.0, 0.5, 2.0))
    chosen = random.choice(world.engines)
    if seconds and not chosen.process.frozen:
        world.loop.freeze(chosen.process)
        world.after(seconds, world.loop.thaw, chosen.process)
    world.record_fault("engine", chosen.process.name, FOREVER, breaks=True, leases=4)


def stream(world: "World", random: Random) -> None:
    """The next streams break off after their first token; what goes on with them does not."""
    # Fewer in all than open a circuit breaker, so that with two engines no client may notice.
    broken = sum(fault.kind == "stream" for fault in world.history.faults)
    count = min(random.randint(1, 2), _MOST_BROKEN_STREAMS - broken)
    if count > 0:
        alone = world.plan.engines - world.plan.standby < 2
        world.streams_to_break += count
        for _ in range(count):
            # Where nothing goes on, a follower whose client has got nothing yet generates for itself, without a lease.
            world.record_fault("stream", "the next", FOREVER, breaks=alone, leases=int(alone))


def silent(world: "World", random: Random) -> None:
    """The next generations have a pause that is longer than a router waits for an engine that does nothing."""
    world.silences += random.randint(1, 2)
    world.record_fault("silence", "the next generations", SILENCE, breaks=False, leases=0)


def frozen(world: "World", random: Random) -> None:
    """An engine stops, and runs again when its routers have left it. Its requests go on elsewhere, if they can."""
    process = random.choice(world.engines).process
    if not process.is_running or world.stopped_engine is not None:
        return
    breaks = world.plan.engines - world.plan.standby < 2 or len(world.plan.kinds) > 1
    # When it runs again, it begins with requests that have been given up, and only then sees that.
    world.record_fault("frozen", process.name, FOREVER, breaks=breaks, leases=_LEFT_REQUESTS)
    world.loop.freeze(process)
    world.stopped_engine = process
    world.after(_STOPPED, world.loop.thaw, process)


def poison(world: "World", random: Random) -> None:
    """A request that ends each engine that gets it, and its repetitions."""
    if world.history.poison is None:
        world.history.poison = Poison(TENANTS[0], random.choice(POISONS), random.random() < 0.6)
    spread = random.choice((0.005, 0.5, 3.0))
    for _ in range(random.randint(1, 4)):
        world.after(spread * random.random(), world.ask_poison, random.random() < 0.2)


FAULTS: Final[dict[str, ApplyFault]] = {
    "stall": stall,
    "cut": cut,
    "lost": lose_commands_or_reply,
    "hold": hold,
    "silence": silence,
    "slow": slow,
    "freeze": freeze,
    "offset": offset,
    "reload": reload,
    "clock-back": clock_back,
    "deaf": lose_listener,
    "long-stall": long_stall,
    "partition": partition,
    "long-freeze": long_freeze,
    "kill": kill,
    "empty": empty,
    "failover": failover,
    "read-only": read_only,
    "full": full,
    "refused": refused,
    "engine": engine,
    "stream": stream,
    "silent": silent,
    "frozen": frozen,
    "poison": poison,
}
