"""The loads: seeded scripts of clients. The same seed gives the same requests, whoever routes them.

A script is an iterator of what a client does: it asks and waits for the answer, it thinks, or it starts several scripts
and waits for all. The text of an answer is part of the script, so that the next turn of a chat contains it.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.routing.model import Speeds
from benchmarks.routing.text import Message, words

REPLICAS: Final = 4


@dataclass(frozen=True)
class Ask:
    """`tokens_per_step`: by draft, of this answer; see Replica."""

    messages: list[Message]
    answer: str
    tokens_per_step: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Think:
    seconds: float


@dataclass(frozen=True)
class Fork:
    branches: Sequence["Script"]


Script = Iterator[Ask | Think | Fork]


@dataclass(frozen=True)
class Client:
    start: float
    script: Script


@dataclass(frozen=True)
class Change:
    """A replica comes, with an empty pool, or goes. `replica`: its index."""

    at: float
    replica: int
    is_added: bool

    @property
    def label(self) -> str:
        return f"{'add' if self.is_added else 'remove'} replica {self.replica + 1} at {self.at:.0f} s"


@dataclass(frozen=True)
class Workload:
    """`replicas`: all that are there at some time; `absent`: those that are not there at the start.

    `drafts`: the draft of each replica; without any, none has one.
    """

    name: str
    clients: list[Client]
    replicas: int = REPLICAS
    absent: frozenset[int] = frozenset()
    changes: Sequence[Change] = ()
    drafts: Sequence[str] = ()
    speeds: Speeds = field(default_factory=Speeds)


def chats(seed: int, prompts: int, *, conversations: int = 200, within: float = 12.0, turns: int = 8) -> list[Client]:
    """Conversations that begin within some seconds; `prompts` system prompts, some of them much more frequent."""
    rng = random.Random(f"chats {seed} {prompts}")
    systems = [words(rng, 1000 if prompts == 1 else 2000) for _ in range(prompts)]
    pick = _zipf(rng, prompts)
    clients = []
    for number in range(conversations):
        own = random.Random(f"chats {seed} {prompts} {number}")
        clients.append(Client(own.uniform(0, within), _chat(own, systems[pick()], turns)))
    return clients


def _chat(rng: random.Random, system: str, turns: int) -> Script:
    messages = [_message("system", system)]
    for turn in range(turns):
        question = _size(rng, 120, 0.9, 10, 2000) if turn else _size(rng, 250, 1.0, 20, 3000)
        messages.append(_message("user", words(rng, question)))
        answer = words(rng, _size(rng, 180, 0.5, 20, 600))
        yield Ask(list(messages), answer)
        messages.append(_message("assistant", answer))
        yield Think(rng.expovariate(1 / 5))


def agents(seed: int, *, count: int = 48, turns: int = 18) -> list[Client]:
    """Agents that call tools in long conversations; now and then one waits for sub-agents."""
    rng = random.Random(f"agents {seed}")
    systems = [words(rng, 3000) for _ in range(4)]
    helpers = [words(rng, 1500) for _ in range(2)]
    clients = []
    for number in range(count):
        own = random.Random(f"agents {seed} {number}")
        messages = [
            _message("system", own.choice(systems)),
            _message("user", words(own, _size(own, 300, 0.8, 20, 2000))),
        ]
        clients.append(Client(own.uniform(0, 20), _agent(own, messages, turns, helpers)))
    return clients


def _agent(rng: random.Random, messages: list[Message], turns: int, helpers: Sequence[str]) -> Script:
    """`helpers`: the system prompts of its sub-agents; without any, it starts none."""
    for turn in range(turns):
        answer = words(rng, _size(rng, 90, 0.6, 20, 500))
        yield Ask(list(messages), answer)
        messages.append(_message("assistant", answer))
        if helpers and turn and rng.random() < 0.12:
            yield Fork([_sub_agent(rng, messages, helpers) for _ in range(rng.randint(2, 3))])
        else:
            yield Think(rng.expovariate(1 / 1.5))  # the tool
        messages.append(_message("tool", words(rng, _size(rng, 350, 1.0, 20, 3000))) | {"tool_call_id": f"call-{turn}"})


def _sub_agent(rng: random.Random, messages: list[Message], helpers: Sequence[str]) -> Script:
    """Half of them know the conversation so far, and half only their task."""
    own = random.Random(rng.random())
    begun = list(messages) if own.random() < 0.5 else [_message("system", own.choice(helpers))]
    task = _message("user", words(own, _size(own, 200, 0.7, 20, 1000)))
    return _agent(own, [*begun, task], own.randint(3, 6), ())


def rag(seed: int, *, requests: int = 900, rate: float = 9.0) -> list[Client]:
    """Questions about one to three documents of 3,000 tokens, in any order; some documents are much more frequent."""
    rng = random.Random(f"rag {seed}")
    documents = [words(rng, 3000) for _ in range(200)]
    system = words(rng, 150)
    pick = _zipf(rng, len(documents))
    clients, at = [], 0.0
    for number in range(requests):
        at += rng.expovariate(rate)
        chosen = list({pick() for _ in range(rng.choice((1, 2, 2, 3)))})
        rng.shuffle(chosen)
        context = "<context>" + "\n\n\n".join(documents[document] for document in chosen) + "</context>"
        clients.append(Client(at, _question(random.Random(f"rag {seed} {number}"), system, context, 40)))
    return clients


def bursts(seed: int, *, requests: int = 2200) -> list[Client]:
    """Requests at a rate that quadruples for some seconds. 60 % of them have the same system prompt."""
    rng = random.Random(f"bursts {seed}")
    hot, *others = [words(rng, 2000) for _ in range(31)]
    pick = _zipf(rng, len(others), 0.7)
    clients: list[Client] = []
    at, is_burst, until = 0.0, False, 6.0
    while len(clients) < requests:
        at += rng.expovariate(60 if is_burst else 16)
        if at > until:
            is_burst = not is_burst
            until = at + (rng.uniform(2, 4) if is_burst else rng.uniform(5, 10))
        system = hot if rng.random() < 0.6 else others[pick()]
        clients.append(Client(at, _question(random.Random(f"bursts {seed} {len(clients)}"), system, "", 300)))
    return clients


QUESTIONS: Final = {
    "code": "Write a Python function with unit tests that parses this input and returns a list: ",
    "chat": "Tell me what you think about this story, and how it could end: ",
}
TOKENS_PER_STEP: Final = {"code": {"code": 3.6, "chat": 2.2}, "chat": {"code": 1.7, "chat": 3.0}}
"""By task and draft."""


def mixed(seed: int, *, conversations: int = 140, within: float = 60.0, turns: int = 6) -> list[Client]:
    """Conversations about code or not, with documents of very different lengths; 3 in 10 turns are about the other."""
    rng = random.Random(f"mixed {seed}")
    systems = [words(rng, 2000) for _ in range(8)]
    clients = []
    for number in range(conversations):
        own = random.Random(f"mixed {seed} {number}")
        clients.append(Client(own.uniform(0, within), _mixed_chat(own, own.choice(systems), turns)))
    return clients


def _mixed_chat(rng: random.Random, system: str, turns: int) -> Script:
    usual, other = rng.sample(list(QUESTIONS), 2)
    messages = [_message("system", system)]
    for _ in range(turns):
        task = other if rng.random() < 0.3 else usual
        context = "<context>" + words(rng, _size(rng, 600, 1.3, 20, 12_000)) + "</context>"
        messages.append(_message("user", context + QUESTIONS[task]))
        answer = words(rng, _size(rng, 220, 0.6, 20, 800))
        noise = rng.gauss(1.0, 0.2)
        yields = {draft: max(1.0, mean * noise) for draft, mean in TOKENS_PER_STEP[task].items()}
        yield Ask(list(messages), answer, yields)
        messages.append(_message("assistant", answer))
        yield Think(rng.expovariate(1 / 5))


def single(messages: list[Message], answer: str) -> Script:
    yield Ask(messages, answer)


CHANGES: Final = (Change(35, REPLICAS, is_added=True), Change(65, 0, is_added=False), Change(95, 0, is_added=True))


def changing(seed: int) -> Workload:
    """Chats while a replica comes, another one goes, and comes back with an empty pool."""
    clients = chats(seed, 20, conversations=260, within=90)
    return Workload("changing", clients, replicas=REPLICAS + 1, absent=frozenset({REPLICAS}), changes=CHANGES)


WORKLOADS: Final[dict[str, Callable[[int], Workload]]] = {
    "chats-1": lambda seed: Workload("chats-1", chats(seed, 1)),
    "chats-20": lambda seed: Workload("chats-20", chats(seed, 20)),
    "agents": lambda seed: Workload("agents", agents(seed)),
    "rag": lambda seed: Workload("rag", rag(seed)),
    "bursts": lambda seed: Workload("bursts", bursts(seed)),
    "changing": changing,
    "drafts": lambda seed: Workload("drafts", mixed(seed), drafts=["code", "code", "chat", "chat"]),
}


def _question(rng: random.Random, system: str, context: str, median: int) -> Script:
    """`median`: of the tokens of the question."""
    question = words(rng, _size(rng, median, 0.8, 10, 2500))
    answer = words(rng, _size(rng, 120, 0.6, 10, 500))
    yield Ask([_message("system", system), _message("user", context + question)], answer)


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _zipf(rng: random.Random, items: int, exponent: float = 1.0) -> Callable[[], int]:
    weights = [1 / (rank + 1) ** exponent for rank in range(items)]
    return lambda: rng.choices(range(items), weights)[0]


def _size(rng: random.Random, median: int, sigma: float, least: int, most: int) -> int:
    """Tokens, log-normal."""
    return int(min(most, max(least, rng.lognormvariate(math.log(median), sigma))))
