"""Is what a client got right? Plain functions over what was asked and what came."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from questions import STALE, TENANTS, Asking, Origin
from sse_answers import DONE, text_of

_STATUSES: Final = (502, 503, 504)
"""What may be answered while engines fail: the requests themselves have no fault."""

_LATE: Final = 2  # seconds by which an answer may outlive its end: Redis looks for what has expired now and then


class Reply(NamedTuple):
    """What came before the connection ended; `whole`: the HTTP answer ended as it should."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool


class Verdict(NamedTuple):
    """How a request ended, as a word, what the cache did, and what is wrong with that."""

    ending: str
    cache: str | None
    defects: list[str]


def judge(asking: Asking, reply: Reply) -> Verdict:
    """Endings are `complete`, `cut` where the connection broke, `broken` after an error event, or an error's name."""
    defects: list[str] = []
    cache = reply.headers.get("x-cache") if reply.status == 200 else None
    try:
        ending = _success(asking, reply, defects) if reply.status == 200 else _error(asking, reply, defects)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        ending = "complete" if reply.whole else "cut"
        if reply.whole:
            defects.append(f"it cannot be read: {error!r}: {reply.body[:300]!r}")
    if reply.headers.get("x-request-id") != asking.origin.request_id():
        defects.append(f"x-request-id is {reply.headers.get('x-request-id')}")
    return Verdict(ending, cache, defects)


def generated(reply: Reply) -> tuple[Origin, float] | None:
    """For whom the answer was generated, and the second since the epoch in which that began; None for what is none."""
    found = re.search(rb'"id": ?"([^"]+)".*?"created": ?(\d+)', reply.body, re.DOTALL)
    return (Origin.of(found[1].decode()), float(found[2])) if found is not None and reply.status == 200 else None


def _error(asking: Asking, reply: Reply, defects: list[str]) -> str:
    if not reply.whole:
        return "cut"
    error = json.loads(reply.body)["error"]
    ending = f"{reply.status} {error['code']}"
    if not (error["message"] and error["type"]) or error.keys() != {"message", "type", "param", "code"}:
        defects.append(f"an error of no shape of OpenAI's: {reply.body!r}")
    if reply.status not in _STATUSES:
        defects.append(f"an error that nobody caused: {ending}")
    if error["code"] == "not_cached" and asking.origin.wish.name != "only-if-cached":
        defects.append("not_cached, and nobody wanted just that")
    if reply.status == 503 and "retry-after" not in reply.headers:
        defects.append("503 without Retry-After")
    return ending


def _success(asking: Asking, reply: Reply, defects: list[str]) -> str:
    _check_key(asking, reply, defects)
    if not asking.stream:
        if not reply.whole:
            return "cut"
        answer = json.loads(reply.body)
        _check_origin(asking, reply, answer["id"], defects)
        defects += flaws_of_body(asking.origin, answer, kept=_kept(reply))
        return "complete"
    return _stream(asking, reply, defects)


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


def _check_origin(asking: Asking, reply: Reply, answer_id: object, defects: list[str]) -> None:
    """Whose answer it is, and whether it may be given to this one."""
    origin, mine = Origin.of(answer_id), asking.origin
    cache = reply.headers.get("x-cache")
    if origin.tenant != mine.tenant:
        defects.append(f"THE ANSWER OF ANOTHER TENANT: {answer_id}")
    if origin.question != mine.question:
        defects.append(f"the answer to another question: {answer_id}")
    if origin == mine:
        return
    if cache in ("MISS", "BYPASS"):
        defects.append(f"{cache}, and yet generated for another request: {answer_id}")
    if origin.wish.name == "no-store" or (origin.wish.ttl == 0 and cache != "COALESCED"):
        defects.append(f"{cache} gave what was not to be kept: {answer_id}")
    if cache in ("HIT", "STALE"):
        age = int(reply.headers["age"])
        beyond = STALE if origin.lives == TENANTS[origin.tenant] else _LATE
        if age > origin.lives + (beyond if cache == "STALE" else 0):
            defects.append(f"{cache} with an age of {age} s, of {answer_id}")


def _kept(reply: Reply) -> bool:
    return reply.headers.get("x-cache") in ("HIT", "STALE")


def flaws_of_body(origin: Origin, answer: dict[str, Any], *, kept: bool) -> list[str]:
    """What is wrong with a JSON answer to this request, one that was `kept` or that an engine has just given.

    An engine that says no `finish_reason` is passed on as it is, and nothing of it is kept.
    """
    (choice,) = answer["choices"]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    flaws = []
    if text != origin.question.text:
        flaws.append(f"the text is {text!r} and not {origin.question.text!r}")
    if choice["finish_reason"] != "stop" and (kept or choice["finish_reason"] is not None):
        flaws.append(f"it ended with {choice['finish_reason']}")
    if not answer["usage"]["completion_tokens"]:
        flaws.append("it has no usage")
    return flaws


def flaws_of_events(origin: Origin, events: list[dict[str, Any]], *, usage: bool, kept: bool) -> list[str]:
    """What is wrong with the events of a whole stream that answers this request; see `flaws_of_body`.

    `usage`: it must tell the usage.
    """
    flaws = []
    text = text_of(events)
    if text != origin.question.text:
        flaws.append(f"the text is {text!r} and not {origin.question.text!r}")
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    if reasons != ["stop"] and (kept or reasons):
        flaws.append(f"it ended with {reasons}")
    told = [event for event in events if not event["choices"]]
    if len(told) != usage or told != events[len(events) - len(told) :]:
        flaws.append(f"the usage was told {len(told)} times")
    if len({event["id"] for event in events}) != 1:
        flaws.append(f"it is put together of several: {[event['id'] for event in events]}")
    return flaws


def frames_of(body: bytes) -> Iterator[bytes]:
    """The whole events of a stream. Raises ValueError for what is none."""
    for frame in re.findall(rb"(.*?)\n\n", body, re.DOTALL):
        if not frame.startswith(b"data: "):
            raise ValueError(f"no event: {frame!r}")
        yield frame.removeprefix(b"data: ")


def _stream(asking: Asking, reply: Reply, defects: list[str]) -> str:
    frames = list(frames_of(reply.body))
    done = frames[-1:] == [DONE.removeprefix(b"data: ").strip()]
    events = [json.loads(frame) for frame in (frames[:-1] if done else frames)]
    failed = bool(events) and "error" in events[-1]
    said = events[:-1] if failed else events
    if said:
        _check_origin(asking, reply, said[0]["id"], defects)
    if done and not failed:
        defects += flaws_of_events(asking.origin, said, usage=asking.usage, kept=_kept(reply))
    elif not asking.origin.question.text.startswith(text_of(said)):
        defects.append(f"it went wrong before it broke off: {text_of(said)!r}")
    if done and failed:
        defects.append("[DONE] after an error")
    if reply.whole and not (done or failed):
        defects.append(f"a stream that just stops, after {frames[-1:]}")
    if reply.whole and not reply.body.endswith(b"\n\n"):
        defects.append("a stream that ends within an event")
    if not reply.whole and not (done or failed):
        return "cut"
    return "broken" if failed else "complete"
