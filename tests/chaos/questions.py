"""What is asked in the chaos, by whom and how, and what the answer must be.

Theory of operation. The tenants ask the same questions, word for word, so a text does not tell whose answer it is. But
an engine makes an answer's id of the request's id, and that names the tenant, the question and what the client allowed:
so every answer, wherever it turns up, tells for whom it was generated and what may have become of it.
"""

import base64
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple, Self

import msgspec

from router.core.derive import derive, take_apart
from router.core.key import Key, Markers
from router.core.request import parse
from router.core.types import Endpoint

TENANTS: Final = {"acme": 2, "globex": 6, "initech": 600}
"""Their names, and for how many seconds their answers live."""

ADMIN_KEY: Final = "key-of-the-station-master"

STALE: Final = 30
"""Seconds beyond that for which an answer is kept, in case that no engine can give a new one."""

_WORDS: Final = (
    "the", "signal", "box", "turntable", "drops", "naïve", "Zürich", "🚂", "\n", "\n    indented", "\ttab", "\r\n",
    "two  spaces", "e\u0301", "data:", "[DONE]", "\\n", '"quoted"', "{", "</s>", "line\n\nbreak",
)  # fmt: skip


class Wish(NamedTuple):
    """What a client asks of the cache; `ttl` in seconds, for which its answer may be kept at most."""

    name: str
    headers: tuple[tuple[str, str], ...] = ()
    ttl: int | None = None


WISHES: Final = {
    wish.name: wish
    for wish in (
        Wish("none"),
        Wish("no-store", (("cache-control", "no-store"),), ttl=0),
        Wish("no-cache", (("cache-control", "no-cache"),)),
        Wish("only-if-cached", (("cache-control", "only-if-cached"),)),
        Wish("max-stale", (("cache-control", "max-stale=5"),)),
        Wish("max-age", (("cache-control", "max-age=1"),)),
        Wish("ttl0", (("x-cache-ttl", "0"),), ttl=0),
        Wish("ttl1", (("x-cache-ttl", "1"),), ttl=1),
        Wish("ttl3", (("x-cache-ttl", "3"),), ttl=3),
    )
}


class Question(NamedTuple):
    """One of endlessly many, told apart by their number."""

    number: int

    @property
    def text(self) -> str:
        """What every engine answers."""
        return _text(self.number)

    @property
    def path(self) -> str:
        return "/v1/completions" if self.number % 5 == 0 else "/v1/chat/completions"

    @property
    def model(self) -> str:
        """The model whose answer it is."""
        return "mistral" if self.number % 7 == 0 else "llama"

    def body(self) -> dict[str, Any]:
        """The request, as JSON; the marker in it makes the simulated engine say just the text."""
        said = base64.b64encode(self.text.encode()).decode()
        prompt = f"Question {self.number}. [[sim:say base64={said}]]"
        if self.number % 4 == 3:  # of some, the answers take long enough for much to happen to them
            prompt += " [[sim:tps rate=25]]"
        asked = "auto" if self.number % 5 == 1 and self.model == "llama" else self.model
        body = {"model": asked, "max_tokens": 150, "temperature": 0}
        if self.path == "/v1/completions":
            return {**body, "prompt": prompt}
        messages = [{"role": "user", "content": prompt}]
        if self.number % 3 == 0:
            messages.insert(0, {"role": "system", "content": "You help at a station."})
        if self.number % 4 == 0:
            messages[-1]["content"] += f" <context>Platform {self.number % 8}.</context>"
        return {**body, "messages": messages}


@cache
def _text(number: int) -> str:
    dice = Random(number)
    return " ".join([f"Answer {number}:", *dice.choices(_WORDS, k=dice.randrange(3, 25)), "the end."])


@dataclass(frozen=True, slots=True)
class Origin:
    """For what request an answer was generated, as the answer's id says."""

    tenant: str
    question: Question
    wish: Wish
    serial: int

    def request_id(self) -> str:
        return f"{self.tenant}.{self.question.number}.{self.wish.name}.{self.serial}"

    @classmethod
    def of(cls, answer_id: object) -> Self:
        """Raises ValueError, KeyError for an id that no engine made of a request's."""
        kind, _, rest = str(answer_id).partition("-")
        tenant, number, wish, serial = rest.split(".")
        if kind not in ("chatcmpl", "cmpl"):
            raise ValueError(f"an answer with the id {answer_id}")
        return cls(tenant, Question(int(number)), WISHES[wish], int(serial))

    @property
    def lives(self) -> int:
        """The seconds for which its answer may be kept, as fresh."""
        ttl = TENANTS[self.tenant]
        return ttl if self.wish.ttl is None else min(ttl, self.wish.ttl)


@dataclass(frozen=True, slots=True)
class Asking:
    """One request of one client.

    - `router`: the number of the router that is asked. `leaves`: the seconds after which the client does not wait any
      longer, if it is so impatient.
    """

    origin: Origin
    router: int
    stream: bool
    usage: bool
    leaves: float | None

    def body(self) -> dict[str, Any]:
        form: dict[str, Any] = {"stream": True} if self.stream else {}
        if self.stream and self.usage:
            form["stream_options"] = {"include_usage": True}
        return {**self.origin.question.body(), **form}

    def headers(self) -> dict[str, str]:
        mine = {"authorization": f"Bearer {key_of(self.origin.tenant)}", "x-request-id": self.origin.request_id()}
        return {**mine, **dict(self.origin.wish.headers)}


@cache
def expected_key(tenant: str, question: Question) -> Key:
    """Under which key the answer to a tenant's question is to be found."""
    request = parse(Endpoint(question.path), msgspec.json.encode(question.body()))
    return derive(take_apart(request, Markers()), tenant=tenant, model=question.model, revision="1")


def key_of(tenant: str) -> str:
    """The tenant's API key."""
    return f"key-of-{tenant}"
