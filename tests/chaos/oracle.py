"""Is what a client got right? Plain functions over what was asked, what came, and which generations there were."""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.chaos.answer_reader import Said, has_usage_of_its_own, read_json, read_stream
from tests.chaos.generation_store import Generation, GenerationStore
from tests.chaos.workload import TENANTS, Asking, Question

_STATUSES: Final = (502, 503, 504)
"""What may be answered while engines fail: the requests themselves have no fault."""

_LATE: Final = 2  # seconds by which an answer may outlive its end: Redis looks for what has expired now and then
_NAME: Final = re.compile(r"[0-9a-f]{12}")
_BEGUN: Final = re.compile(r"[0-9a-f]{0,11}")  # a name that is cut


class Reply(NamedTuple):
    """What came before the connection ended; `whole`: the HTTP answer ended as it should."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool


class Verdict(NamedTuple):
    """How a request ended, as a word, what the cache did, what is wrong with that, and who generated what came."""

    ending: str
    cache: str | None
    defects: list[str]
    generation: Generation | None = None


def judge(asking: Asking, reply: Reply, store: GenerationStore) -> Verdict:
    """Endings are `complete`, `cut` where the connection broke, `broken, CODE` after an error event, or an error."""
    defects: list[str] = []
    cache = reply.headers.get("x-cache") if reply.status == 200 else None
    ending, generation = "complete" if reply.whole else "cut", None
    try:
        if reply.status == 200:
            ending, generation = _success(asking, reply, store, defects)
        else:
            ending = _error(asking, reply, defects)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        if reply.whole:
            defects.append(f"it cannot be read: {error!r}: {reply.body[:300]!r}")
    if reply.headers.get("x-request-id") != asking.origin.request_id():
        defects.append(f"x-request-id is {reply.headers.get('x-request-id')}")
    return Verdict(ending, cache, defects, generation)


def _error(asking: Asking, reply: Reply, defects: list[str]) -> str:
    if not reply.whole:
        return "cut"
    error = json.loads(reply.body)["error"]
    ending = f"{reply.status} {error['code']}"
    if not (error["message"] and error["type"]) or error.keys() != {"message", "type", "param", "code"}:
        defects.append(f"an error of no shape of OpenAI's: {reply.body!r}")
    limited = error["code"] == "rate_limit_exceeded" and bool(TENANTS[asking.origin.tenant].limits)
    if reply.status not in _STATUSES and ending != "429 tenant_queue_full" and not (reply.status == 429 and limited):
        defects.append(f"an error that nobody caused: {ending}")
    if error["code"] == "not_cached" and asking.origin.wish.name != "only-if-cached":
        defects.append("not_cached, and nobody wanted just that")
    if reply.status in (429, 503) and "retry-after" not in reply.headers:
        defects.append(f"{reply.status} without Retry-After")
    return f"{ending} {error['type']}" if reply.status == 429 else ending


def _success(asking: Asking, reply: Reply, store: GenerationStore, defects: list[str]) -> tuple[str, Generation | None]:
    _check_key(asking, reply, defects)
    question = asking.origin.question
    if asking.stream:
        ending, said = _stream(asking, reply, defects)
    elif not reply.whole:
        return "cut", None
    else:
        ending, said = "complete", read_json(question.path, json.loads(reply.body))
    whole = ending == "complete"
    defects += said.flaws
    defects += flaws_of_text(question, said.text, whole=whole)
    if whole:
        defects += flaws_of_end(said, kept=_kept(reply))
        if not asking.stream or not has_usage_of_its_own(question.path):
            usages = 1 if not asking.stream else int(asking.tells_usage)
            defects += [f"the usage is told {said.usages} times"] if said.usages != usages else []
    name = name_in(said.text)
    generation = store.find(name) if name is not None else None
    if generation is not None:
        defects += _flaws_of_origin(asking, reply, generation)
        defects += flaws_of_ids(said, generation, store)
    elif name is not None:
        defects.append(f"no engine has generated it: {said.text[:60]!r}")
    elif whole:
        defects.append(f"it names no generation: {said.text[:60]!r}")
    return ending, generation


def _stream(asking: Asking, reply: Reply, defects: list[str]) -> tuple[str, Said]:
    stream = read_stream(asking.origin.question.path, reply.body)
    if stream.done and stream.failed is not None:
        defects.append("the end of a stream after an error")
    if reply.whole and not stream.done and stream.failed is None:
        defects.append(f"a stream that just stops, after {stream.last!r}")
    if reply.whole and not reply.body.endswith(b"\n\n"):
        defects.append("a stream that ends within an event")
    if stream.failed is not None:
        return f"broken, {stream.failed}", stream.said
    return ("complete" if stream.done else "cut"), stream.said


def name_in(text: str) -> str | None:
    """The generation that an answer names at its begin; None where not even that has come."""
    found = _NAME.match(text)
    return found[0] if found is not None else None


def flaws_of_text(question: Question, text: str, *, whole: bool) -> list[str]:
    """Whether it is what one generation says, all of it or a prefix."""
    name = name_in(text)
    due = question.text(name) if name is not None else question.template
    if text == due or (not whole and (due.startswith(text) or _BEGUN.fullmatch(text) is not None)):
        return []
    if len(names := set(_NAME.findall(text))) > 1:
        return [f"it is put together of the generations {', '.join(sorted(names))}: {text!r}"]
    return [f"the text is {text!r} and not {due!r}" if whole else f"it went wrong before it broke off: {text!r}"]


def flaws_of_end(said: Said, *, kept: bool) -> list[str]:
    """What is wrong with how it ended, of an answer that was `kept` or that an engine has just given.

    An engine that does not say how it ended is passed on as it is, and nothing of it is kept.
    """
    return [] if said.ended or (said.ended is None and not kept) else [f"it ended with {said.ended}"]


def flaws_of_ids(said: Said, generation: Generation, store: GenerationStore) -> list[str]:
    """An answer has one id, and everybody gets the same one."""
    if len(said.ids) == 1 and store.has_id(generation.name, *said.ids):
        return []
    return [f"it calls itself {sorted(said.ids)}, which others of {generation.name} do not"]


def _check_key(asking: Asking, reply: Reply, defects: list[str]) -> None:
    key, cache = reply.headers.get("x-cache-key"), reply.headers.get("x-cache")
    if cache not in ("HIT", "MISS", "COALESCED", "STALE", "BYPASS"):
        defects.append(f"X-Cache is {cache}")
    if key is not None and not key.startswith(f"rh:1:{asking.origin.tenant}:{asking.origin.question.model}:"):
        defects.append(f"a key of somebody else: {key}")
    if (cache == "BYPASS") != (key is None) and cache != "COALESCED":
        defects.append(f"{cache} with the key {key}")
    if asking.origin.wish.name in ("no-store", "no-cache") and cache != "BYPASS":
        defects.append(f"{cache} for {asking.origin.wish.name}")


def _flaws_of_origin(asking: Asking, reply: Reply, generation: Generation) -> list[str]:
    """Whose answer it is, and whether it may be given to this one."""
    origin, mine = generation.origin, asking.origin
    cache = reply.headers.get("x-cache")
    flaws = []
    if origin.tenant != mine.tenant:
        flaws.append(f"THE ANSWER OF ANOTHER TENANT: {origin}")
    if origin.question != mine.question:
        flaws.append(f"the answer to another question: {origin}")
    if reply.headers.get("x-engine") != generation.engine:
        flaws.append(f"X-Engine is {reply.headers.get('x-engine')}, and {generation.engine} has generated it")
    if origin == mine:
        return flaws
    if cache in ("MISS", "BYPASS"):
        flaws.append(f"{cache}, and yet generated for another request: {origin}")
    if origin.wish.name == "no-store" or (origin.wish.ttl == 0 and cache != "COALESCED"):
        flaws.append(f"{cache} gave what was not to be kept: {origin}")
    if cache in ("HIT", "STALE"):
        age = int(reply.headers["age"])
        beyond = origin.beyond if origin.beyond else _LATE
        if age > origin.lives + (beyond if cache == "STALE" else 0):
            flaws.append(f"{cache} with an age of {age} s, of {origin}")
    return flaws


def _kept(reply: Reply) -> bool:
    return reply.headers.get("x-cache") in ("HIT", "STALE")
