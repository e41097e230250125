"""Checks a client's response: pure functions over the request, the response, and the engines' generations."""

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.chaos.answer_reader import ParsedAnswer, always_sends_usage, parse_json_answer, parse_stream
from tests.chaos.generation_store import GenerationIndex, LoggedGeneration
from tests.chaos.workload import MESSAGES, TENANTS, ClientRequest, WorkloadQuestion

_ENGINE_FAILURE_STATUSES: Final = (502, 503, 504)
"""Statuses that are allowed while engines fail: the requests themselves are valid."""

_EXPIRY_TOLERANCE: Final = 2  # seconds beyond an entry's expiry: Redis removes expired keys only now and then
_GENERATION_NAME: Final = re.compile(r"[0-9a-f]{12}")
_PARTIAL_NAME: Final = re.compile(r"[0-9a-f]{0,11}")  # a truncated name


class ClientResponse(NamedTuple):
    """What arrived before the connection ended. `complete`: the HTTP response ended regularly."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    complete: bool


class ResponseVerdict(NamedTuple):
    """How a request ended, as a word, the cache's result, the defects, and the generation of the answer."""

    ending: str
    cache: str | None
    defects: list[str]
    generation: LoggedGeneration | None = None


def check_response(request: ClientRequest, response: ClientResponse, store: GenerationIndex) -> ResponseVerdict:
    """Endings are `complete`, `cut` if the connection broke, `broken, CODE` after an error event, or an error."""
    defects: list[str] = []
    cache = response.headers.get("x-cache") if response.status == 200 else None
    ending, generation = "complete" if response.complete else "cut", None
    try:
        if response.status == 200:
            ending, generation = _check_success(request, response, store, defects)
        else:
            ending = _check_error(request, response, defects)
    # Any malformed body ends here; a truncated one is no defect.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        if response.complete:
            defects.append(f"it cannot be read: {error!r}: {response.body[:300]!r}")
    if response.headers.get("x-request-id") != request.origin.request_id():
        defects.append(f"x-request-id is {response.headers.get('x-request-id')}")
    return ResponseVerdict(ending, cache, defects, generation)


def _check_error(request: ClientRequest, response: ClientResponse, defects: list[str]) -> str:
    if not response.complete:
        return "cut"
    if request.origin.question.path == MESSAGES:
        return _check_anthropic_error(request, response, defects)
    error = json.loads(response.body)["error"]
    ending = f"{response.status} {error['code']}"
    if not (error["message"] and error["type"]) or error.keys() != {"message", "type", "param", "code"}:
        defects.append(f"an error of no shape of OpenAI's: {response.body!r}")
    limited = error["code"] == "rate_limit_exceeded" and bool(TENANTS[request.origin.tenant].limits)
    if (
        response.status not in _ENGINE_FAILURE_STATUSES
        and ending != "429 tenant_queue_full"
        and not (response.status == 429 and limited)
    ):
        defects.append(f"an error that no fault explains: {ending}")
    if error["code"] == "not_cached" and request.origin.directive.name != "only-if-cached":
        defects.append("not_cached, although the client did not send only-if-cached")
    if response.status in (429, 503) and "retry-after" not in response.headers:
        defects.append(f"{response.status} without Retry-After")
    return f"{ending} {error['type']}" if response.status == 429 else ending


def _check_anthropic_error(request: ClientRequest, response: ClientResponse, defects: list[str]) -> str:
    # Without a code, so a 429 may be of the tenant's limits or of the queue.
    body = json.loads(response.body)
    error = body.get("error", {})
    if body.keys() != {"type", "error", "request_id"} or error.keys() != {"type", "message"}:
        defects.append(f"an error of no shape of Anthropic's: {response.body!r}")
    if body.get("request_id") != request.origin.request_id():
        defects.append(f"request_id is {body.get('request_id')}")
    if response.status not in (*_ENGINE_FAILURE_STATUSES, 429):
        defects.append(f"an error that no fault explains: {response.status} {error.get('type')}")
    if response.status in (429, 503) and "retry-after" not in response.headers:
        defects.append(f"{response.status} without Retry-After")
    return f"{response.status} {error.get('type')}"


def _check_success(
    request: ClientRequest, response: ClientResponse, store: GenerationIndex, defects: list[str]
) -> tuple[str, LoggedGeneration | None]:
    _check_key(request, response, defects)
    question = request.origin.question
    if request.stream:
        ending, answer = _check_stream(request, response, defects)
    elif not response.complete:
        return "cut", None
    else:
        ending, answer = "complete", parse_json_answer(question.path, json.loads(response.body))
    is_complete = ending == "complete"
    defects += answer.flaws
    defects += text_flaws(question, answer.text, complete=is_complete)
    if is_complete:
        defects += finish_flaws(answer, cached=_was_stored(response))
        if not request.stream or not always_sends_usage(question.path):
            usages = 1 if not request.stream else int(request.expects_usage)
            defects += [f"it has the usage {answer.usage_count} times"] if answer.usage_count != usages else []
    name = generation_name(answer.text)
    generation = store.find(name) if name is not None else None
    if generation is not None:
        defects += _origin_flaws(request, response, generation, store)
        defects += id_flaws(answer, generation, store)
    elif name is not None:
        defects.append(f"no engine has generated it: {answer.text[:60]!r}")
    elif is_complete:
        defects.append(f"it names no generation: {answer.text[:60]!r}")
    return ending, generation


def _check_stream(request: ClientRequest, response: ClientResponse, defects: list[str]) -> tuple[str, ParsedAnswer]:
    stream = parse_stream(request.origin.question.path, response.body)
    if stream.done and stream.error_code is not None:
        defects.append("the end of a stream after an error")
    if response.complete and not stream.done and stream.error_code is None:
        defects.append(f"a stream that just stops, after {stream.last!r}")
    if response.complete and not response.body.endswith(b"\n\n"):
        defects.append("a stream that ends within an event")
    if stream.error_code is not None:
        return f"broken, {stream.error_code}", stream.answer
    return ("complete" if stream.done else "cut"), stream.answer


def generation_name(text: str) -> str | None:
    match = _GENERATION_NAME.match(text)
    return match[0] if match is not None else None


def text_flaws(question: WorkloadQuestion, text: str, *, complete: bool) -> list[str]:
    """What is wrong with the text: it must be that of one generation, or a prefix of it if not `complete`."""
    name = generation_name(text)
    expected = question.text(name) if name is not None else question.template
    if text == expected or (not complete and (expected.startswith(text) or _PARTIAL_NAME.fullmatch(text) is not None)):
        return []
    # Several names: parts of several generations were joined.
    if len(names := set(_GENERATION_NAME.findall(text))) > 1:
        return [f"it is put together of the generations {', '.join(sorted(names))}: {text!r}"]
    return [
        f"the text is {text!r} and not {expected!r}" if complete else f"it went wrong before it broke off: {text!r}"
    ]


def finish_flaws(answer: ParsedAnswer, *, cached: bool) -> list[str]:
    """What is wrong with the finish reason of an answer.

    An answer without a finish reason is passed on as it is, but must not be stored (`cached`).
    """
    return [] if answer.finished or (answer.finished is None and not cached) else [f"it ended with {answer.finished}"]


def id_flaws(answer: ParsedAnswer, generation: LoggedGeneration, store: GenerationIndex) -> list[str]:
    """An answer has one id, and all clients of its generation get the same."""
    if len(answer.ids) == 1 and store.matches_id(generation.name, *answer.ids):
        return []
    return [f"it calls itself {sorted(answer.ids)}, which others of {generation.name} do not"]


def _check_key(request: ClientRequest, response: ClientResponse, defects: list[str]) -> None:
    key, cache = response.headers.get("x-cache-key"), response.headers.get("x-cache")
    if cache not in ("HIT", "MISS", "COALESCED", "STALE", "BYPASS"):
        defects.append(f"X-Cache is {cache}")
    if key is not None and not key.startswith(f"rh:1:{request.origin.tenant}:{request.origin.question.model}:"):
        defects.append(f"another tenant's or request's key: {key}")
    if (cache == "BYPASS") != (key is None) and cache != "COALESCED":
        defects.append(f"{cache} with the key {key}")
    if request.origin.directive.name in ("no-store", "no-cache") and cache != "BYPASS":
        defects.append(f"{cache} for {request.origin.directive.name}")


def _origin_flaws(
    request: ClientRequest, response: ClientResponse, generation: LoggedGeneration, store: GenerationIndex
) -> list[str]:
    """What is wrong with giving this request an answer that was generated for another."""
    origin, wanted = generation.origin, request.origin
    cache, engine = response.headers.get("x-cache"), response.headers.get("x-engine")
    # With a heartbeat, the headers are sent before it is known where the response comes from.
    is_early = response.body.startswith(b":")
    if is_early and cache == "MISS":
        cache = "COALESCED"
    flaws = []
    if origin.tenant != wanted.tenant:
        flaws.append(f"THE ANSWER OF ANOTHER TENANT: {origin}")
    if origin.question != wanted.question:
        flaws.append(f"the answer to another question: {origin}")
    if not store.is_of(generation, engine) and not (is_early and engine is None):
        flaws.append(f"X-Engine is {engine}, and {generation.engine} has generated it")
    if origin == wanted:
        return flaws
    if cache in ("MISS", "BYPASS"):
        flaws.append(f"{cache}, and yet generated for another request: {origin}")
    if origin.directive.name == "no-store" or (origin.directive.ttl == 0 and cache != "COALESCED"):
        flaws.append(f"{cache} gave what was not to be kept: {origin}")
    if cache in ("HIT", "STALE"):
        age = int(response.headers["age"])
        tolerance = origin.stale_ttl if origin.stale_ttl else _EXPIRY_TOLERANCE
        if age > origin.ttl + (tolerance if cache == "STALE" else 0):
            flaws.append(f"{cache} with an age of {age} s, of {origin}")
    return flaws


def _was_stored(response: ClientResponse) -> bool:
    return response.headers.get("x-cache") in ("HIT", "STALE")
