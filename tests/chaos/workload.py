"""The requests of the chaos test, and the answers that they must get.

Theory of operation. The tenants ask the same questions, word for word, so the question does not identify the owner of
an answer. But the text of each answer contains the name of its generation many times (see docs/simulator.md), and the
engine logs, for each name, the request that started the generation. So every answer, wherever it is found, shows for
which request and when it was generated, and whether all of it comes from one generation.
"""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final, NamedTuple, Self

import msgspec

from engines.simulator.control.generation_log import PLACEHOLDER
from router.core.cache.cache_key import CacheKey
from router.core.cache.key import ContextMarkers
from router.core.cache.key_derivation import derive_cache_key, split_parts
from router.core.endpoints.requests.request import parse_request
from router.core.endpoints.table import ENDPOINT_BY_PATH


class TenantSpec(NamedTuple):
    """`ttl` of its entries in seconds. `limits`: as in the configuration."""

    ttl: int
    limits: Mapping[str, int] = {}


TENANTS: Final = {
    "acme": TenantSpec(2),
    "globex": TenantSpec(6),
    "initech": TenantSpec(600),
    "hooli": TenantSpec(60, {"requests_per_minute": 60}),
    "umbrella": TenantSpec(60, {"tokens_per_minute": 6000, "concurrent_requests": 2}),
}

UNLIMITED: Final = tuple(name for name, tenant in TENANTS.items() if not tenant.limits)

ADMIN_KEY: Final = "key-of-an-administrator"

STALE_TTL: Final = 3600
"""Seconds for which a stale entry is kept by default, in case no engine can generate a new answer."""

MAX_TOKENS: Final = 200

FIRST_HOT_QUESTION: Final = 500_000
"""From this number on, questions are for the hot-key load, and their answers take a second or two."""

FIRST_POISON_QUESTION: Final = 800_000
"""From this number on, questions end the process of the engine that answers them; POISON_QUESTIONS of them."""

POISON_QUESTIONS: Final = 100_000

POISON_EXIT_CODE: Final = 77

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
EMBEDDINGS: Final = "/v1/embeddings"

_PATHS: Final = {0: COMPLETIONS, 3: RESPONSES, 6: MESSAGES, 8: EMBEDDINGS}  # by a question's last digit; else CHAT
_WORDS: Final = (
    "the", "signal", "box", "turntable", "drops", "naïve", "Zürich", "🚂", "\n", "\n    indented", "\ttab", "\r\n",
    "two  spaces", "e\u0301", "data:", "[DONE]", "\\n", '"quoted"', "{", "</s>", "line\n\nbreak",
)  # fmt: skip
_WORDS_PER_NAME: Final = 4  # between two occurrences of the generation's name


class CacheDirective(NamedTuple):
    """The cache headers of a request. `ttl`: the longest time in seconds for which the answer may be stored."""

    name: str
    headers: tuple[tuple[str, str], ...] = ()
    ttl: int | None = None


CACHE_DIRECTIVES: Final = {
    directive.name: directive
    for directive in (
        CacheDirective("none"),
        CacheDirective("no-store", (("cache-control", "no-store"),), ttl=0),
        CacheDirective("no-cache", (("cache-control", "no-cache"),)),
        CacheDirective("only-if-cached", (("cache-control", "only-if-cached"),)),
        CacheDirective("max-stale", (("cache-control", "max-stale=5"),)),
        CacheDirective("max-age", (("cache-control", "max-age=1"),)),
        CacheDirective("ttl0", (("x-cache-ttl", "0"),), ttl=0),
        CacheDirective("ttl1", (("x-cache-ttl", "1"),), ttl=1),
        CacheDirective("ttl3", (("x-cache-ttl", "3"),), ttl=3),
    )
}


class WorkloadQuestion(NamedTuple):
    """One of an unlimited number of questions, identified by its number."""

    number: int

    @property
    def path(self) -> str:
        return _PATHS.get(self.number % 10, CHAT)

    @property
    def streams(self) -> bool:
        return self.path != EMBEDDINGS

    @property
    def template(self) -> str:
        """The text of every engine's answer, with PLACEHOLDER for the generation's name; it begins with that."""
        return PLACEHOLDER if self.path == EMBEDDINGS else _template(self.number)

    def text(self, generation: str) -> str:
        """The answer's text in a generation. An embedding only encodes the generation's name."""
        return self.template.replace(PLACEHOLDER, generation)

    @property
    def model(self) -> str:
        if self.path == EMBEDDINGS:
            return "embed"
        return "mistral" if self.number % 7 == 0 else "llama"

    @property
    def is_poison(self) -> bool:
        return FIRST_POISON_QUESTION <= self.number < FIRST_POISON_QUESTION + POISON_QUESTIONS

    def body(self) -> dict[str, Any]:
        """The request as JSON. A marker in it makes the simulated engine answer with exactly this text."""
        encoded_text = base64.b64encode(self.template.encode()).decode()
        prompt = f"Question {self.number}. [[sim:say base64={encoded_text}]]"
        if self.number % 4 == 3:  # slow enough for several faults during one answer
            prompt += " [[sim:tps rate=25]]"
        elif self.number >= FIRST_HOT_QUESTION:
            prompt += " [[sim:tps rate=50]]"
        if self.is_poison:  # at once, or after some tokens
            prompt += f" [[sim:exit after={self.number % 3} code={POISON_EXIT_CODE}]]"
        model = "auto" if self.number % 5 == 1 and self.model == "llama" else self.model
        body = {"model": model, "temperature": 0}
        match self.path:
            case "/v1/embeddings":
                return {"model": model, "input": prompt}
            case "/v1/completions":
                return {**body, "max_tokens": MAX_TOKENS, "prompt": prompt}
            case "/v1/responses":
                return {**body, "max_output_tokens": MAX_TOKENS, "input": prompt}
        messages = [{"role": "user", "content": prompt}]
        if self.number % 3 == 0 and self.path == CHAT:
            messages.insert(0, {"role": "system", "content": "You help at a station."})
        if self.number % 4 == 0:
            messages[-1]["content"] += f" <context>Platform {self.number % 8}.</context>"
        return {**body, "max_tokens": MAX_TOKENS, "messages": messages}


@cache
def _template(number: int) -> str:
    rng = Random(number)
    words = [f"Answer {number}:", *rng.choices(_WORDS, k=rng.randrange(3, 25)), "the end."]
    segments = [" ".join(words[at : at + _WORDS_PER_NAME]) for at in range(0, len(words), _WORDS_PER_NAME)]
    return f"{PLACEHOLDER} " + f" {PLACEHOLDER} ".join(segments)


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The request for which an answer was generated, as the engine logs it."""

    tenant: str
    question: WorkloadQuestion
    directive: CacheDirective
    serial: int

    def request_id(self) -> str:
        return f"{self.tenant}.{self.question.number}.{self.directive.name}.{self.serial}"

    @classmethod
    def parse(cls, request_id: str) -> Self:
        """Raises ValueError or KeyError for any other id."""
        tenant, number, directive, serial = request_id.split(".")
        return cls(tenant, WorkloadQuestion(int(number)), CACHE_DIRECTIVES[directive], int(serial))

    @property
    def ttl(self) -> int:
        """Seconds for which its answer may be stored as fresh."""
        ttl = TENANTS[self.tenant].ttl
        return ttl if self.directive.ttl is None else min(ttl, self.directive.ttl)

    @property
    def stale_ttl(self) -> int:
        """Seconds for which its answer is kept beyond `ttl`; 0 if the client shortened the time to live."""
        return STALE_TTL if self.ttl == TENANTS[self.tenant].ttl else 0


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One request of one client.

    `router`: the router's number. `leaves_after`: seconds after which the client disconnects; None if it waits.
    """

    origin: RequestOrigin
    router: int
    stream: bool
    usage: bool
    leaves_after: float | None

    @property
    def expects_usage(self) -> bool:
        """Whether its stream has a usage event only because the request asks for it."""
        return self.usage and self.origin.question.path in (CHAT, COMPLETIONS)

    def body(self) -> dict[str, Any]:
        stream_fields: dict[str, Any] = {"stream": True} if self.stream else {}
        if self.stream and self.expects_usage:
            stream_fields["stream_options"] = {"include_usage": True}
        # Both are not in the cache key. The engine logs the first one; it gets only the second one if it goes on with a
        # stream by the ids of its tokens.
        names = (
            ("safety_identifier", "user")
            if self.origin.question.path in (CHAT, COMPLETIONS)
            else ("safety_identifier",)
        )
        return {**self.origin.question.body(), **stream_fields, **dict.fromkeys(names, self.origin.request_id())}

    def headers(self) -> dict[str, str]:
        required = {"authorization": f"Bearer {api_key(self.origin.tenant)}", "x-request-id": self.origin.request_id()}
        return {**required, **dict(self.origin.directive.headers)}


@cache
def expected_key(tenant: str, question: WorkloadQuestion) -> CacheKey:
    request = parse_request(ENDPOINT_BY_PATH[question.path], msgspec.json.encode(question.body()))
    return derive_cache_key(split_parts(request, ContextMarkers()), tenant=tenant, model=question.model, revision="1")


def api_key(tenant: str) -> str:
    return f"key-of-{tenant}"
