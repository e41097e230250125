"""The events of a simulation, on which the invariants are checked. Instants are virtual seconds."""

from typing import Literal

import msgspec

from tests.simulation.clock import CLOCK

FOREVER = float("inf")

Ending = Literal["", "complete", "failed", "left", "killed"]
"""Of a request: not ended; complete; ended by an error; the client disconnected; its router was killed."""


class SimulatedGeneration:
    """One generation at an engine. `router`: the process that requested it.

    `tenant`: of the client that asked first; "" if unknown.

    `answer`: the number of the generation that began the answer; `first`: the position of its first token, and `tokens`
    the one after its last; `natural`: the same without the limit of the request. `tokens_sent`: sent so far.
    """

    __slots__ = (
        "answer",
        "by_ids",
        "ended",
        "engine",
        "first",
        "natural",
        "number",
        "outcome",
        "question",
        "router",
        "started",
        "streams",
        "tenant",
        "tokens",
        "tokens_sent",
    )

    def __init__(self, number: int, question: int, router: str, engine: str, tokens: int, streams: bool) -> None:
        self.number = number
        self.question = question
        self.router = router
        self.engine = engine
        self.tokens = tokens
        self.streams = streams
        self.started = CLOCK.now
        self.ended = FOREVER
        self.outcome = ""
        self.tokens_sent = 0
        self.tenant = ""
        self.answer = number
        self.first = 0
        self.natural = tokens
        self.by_ids = False

    @property
    def is_continuation(self) -> bool:
        return self.answer != self.number

    def end(self, outcome: str) -> None:
        if not self.outcome:
            self.outcome, self.ended = outcome, CLOCK.now

    def __repr__(self) -> str:
        begun = f" goes on with {self.answer} at {self.first}" if self.is_continuation else ""
        return (
            f"generation {self.number}{begun} of question {self.question} by {self.engine} at {self.router}, "
            f"{self.started:.3f}-{self.ended:.3f} {self.outcome}"
        )


class RequestRecord:
    """One request of a client. `pause`: seconds after each piece of its response in which the client reads nothing."""

    __slots__ = (
        "body",
        "cache",
        "ended",
        "ending",
        "number",
        "pause",
        "question",
        "router",
        "started",
        "status",
        "stream",
        "tenant",
    )  # fmt: skip

    def __init__(self, number: int, tenant: str, question: int, router: str, stream: bool) -> None:
        self.number = number
        self.tenant = tenant
        self.question = question
        self.router = router
        self.stream = stream
        self.started = CLOCK.now
        self.ended = FOREVER
        self.ending: Ending = ""
        self.status = 0
        self.cache = ""
        self.pause = 0.0
        self.body: list[bytes] = []

    def end(self, ending: Ending) -> None:
        if not self.ending:
            self.ending, self.ended = ending, CLOCK.now

    def __repr__(self) -> str:
        form = "stream" if self.stream else "JSON"
        return (
            f"request {self.number} ({form}) of {self.tenant}'s question {self.question} at {self.router}, "
            f"{self.started:.3f}-{self.ended:.3f} {self.cache} {self.status} {self.ending}"
        )


class SimulatedPurge:
    """One purge. `returned` stays FOREVER if it failed. `tenant`, `question`: None is any.

    `of_standby`: whether its key is of the standby's revision; None is any, too.
    """

    __slots__ = ("number", "of_standby", "question", "recorded", "returned", "started", "tenant")

    def __init__(
        self, number: int, tenant: str | None, question: int | None, *, of_standby: bool | None = None
    ) -> None:
        self.of_standby = of_standby
        self.number = number
        self.tenant = tenant
        self.question = question
        self.started = CLOCK.now
        self.returned = FOREVER
        self.recorded = True
        """Whether Redis still has its record."""

    def covers(self, tenant: str, question: int, *, by_standby: bool) -> bool:
        return (
            self.tenant in (None, tenant)
            and self.question in (None, question)
            and self.of_standby in (None, by_standby)
        )

    def __repr__(self) -> str:
        return f"purge {self.number} of {self.tenant}/{self.question}, {self.started:.3f}-{self.returned:.3f}"


class FaultRecord:
    """One fault. `breaks`: whether requests may fail because of it; `leases`: how many leases may be lost by it."""

    __slots__ = ("breaks", "ended", "kind", "leases", "started", "target")

    def __init__(self, kind: str, target: str, ended: float, *, breaks: bool, leases: int) -> None:
        self.kind = kind
        self.target = target
        self.started = CLOCK.now
        self.ended = ended
        self.breaks = breaks
        self.leases = leases

    def __repr__(self) -> str:
        return f"{self.kind} of {self.target}, {self.started:.3f}-{self.ended:.3f}"


class Poison(msgspec.Struct, frozen=True):
    """A request that ends engines. It has one form, as clients repeat a request byte for byte."""

    tenant: str
    question: int
    stream: bool


class History:
    """All events of one simulation. `processes`: the number of routers. `standby`: an engine of another revision.

    `poison`: the request that ends each engine that gets it, if there is one.

    `entries`: by tenant, question and key, the instants at which the entry changed, and its generation from then on (0:
    none). A question has a key for each revision of the engines that answer it.
    """

    def __init__(self, processes: int, standby: str = "") -> None:
        self.processes = processes
        self.standby = standby
        self.poison: Poison | None = None
        self.generations: list[SimulatedGeneration] = []
        self.requests: list[RequestRecord] = []
        self.purges: list[SimulatedPurge] = []
        self.faults: list[FaultRecord] = []
        self.entries: dict[tuple[str, int, bytes], list[tuple[float, int]]] = {}
        self.defects: list[str] = []  # of requests that engines got
