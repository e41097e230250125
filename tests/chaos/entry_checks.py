"""What is stored, looked at as people see it in Redis: is it what it says, and whole?"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
from router.store.codec import checksum
from tests.chaos.answer_reader import ParsedAnswer, always_sends_usage, parse_events, parse_json_answer
from tests.chaos.generation_store import GenerationIndex, LoggedGeneration
from tests.chaos.oracle import finish_flaws, generation_name, id_flaws, text_flaws
from tests.chaos.workload import CHAT, COMPLETIONS, WorkloadQuestion, expected_key

_FIELDS: Final = {
    "digest", "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms",
    "question", "params", "body", "checksum", "format",
}  # fmt: skip
_UNREADABLE: Final = (KeyError, *STREAM_DECODE_ERRORS)
_DATA: Final = re.compile(rb"^data: (.*)", re.MULTILINE)
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "generation_ms")
_PATHS: Final = {"chat.completion": CHAT, "text_completion": COMPLETIONS, "chat.completion.chunk": CHAT}
_TYPED: Final = {"response": "/v1/responses", "message": "/v1/messages"}


def entry_generation(fields: Mapping[bytes, bytes], store: GenerationIndex) -> LoggedGeneration | None:
    """The generation that an entry is of; None where that cannot be read."""
    try:
        name = generation_name(_parse_forms({name.decode(): value for name, value in fields.items()})[0][1].text)
    except _UNREADABLE:
        return None
    return store.find(name) if name is not None else None


def entry_flaws(key: str, fields: Mapping[bytes, bytes], left: int, store: GenerationIndex) -> list[str]:
    """What is wrong with an entry that has so many milliseconds left."""
    told = {name.decode(): value for name, value in fields.items()}
    try:
        return _entry_flaws(key, told, left, store)
    except _UNREADABLE as error:
        return [f"it cannot be read: {error!r}: {told}"]


def _entry_flaws(key: str, told: dict[str, bytes], left: int, store: GenerationIndex) -> list[str]:
    if missing := _FIELDS - told.keys():
        return [f"it has no {', '.join(sorted(missing))}"]
    forms = _parse_forms(told)
    generation = store.find(generation_name(forms[0][1].text) or "")
    if generation is None:
        return [f"nobody has generated it: {forms[0][1].text!r}"]
    origin = generation.origin
    due, lives = expected_key(origin.tenant, origin.question), float(told["ttl"])
    checks = {
        f"it is the answer to {origin}, whose key is {due.text}": key == due.text,
        f"its digest is {told['digest']!r}": told["digest"] == due.digest.encode(),
        f"nobody was to keep the answer to {origin}": origin.directive.name != "no-store" and origin.directive.ttl != 0,
        f"its ttl is {lives} s, for {origin}": lives == origin.ttl,
        f"it stays for another {left} ms, with a ttl of {lives} s": left <= (lives + origin.stale_ttl) * 1000,
        f"its model is {told['model']!r}": told["model"] == origin.question.model.encode(),
        f"its engine is {told['engine']!r}": told["engine"] == generation.engine.encode(),
        f"its task is {told['task']!r}": told["task"] in (b"chat", b"code"),
        f"its checksum is {told['checksum']!r}": told["checksum"].decode()
        == checksum(told["body"], told.get("stream")),
        "its counts are none": all(int(told[name]) >= 0 for name in _COUNTS) and float(told["created"]) > 0,
    }
    found = [flaw for flaw, well in checks.items() if not well]
    for name, said in forms:
        found += [f"{flaw}, in {name}" for flaw in _form_flaws(origin.question, said, generation, store)]
    if "stream" in told and not _event_stream(told).endswith(b"\n\n"):
        found.append(f"its events have no end: {_event_stream(told)[-300:]!r}")
    if "stream" in told and not always_sends_usage(origin.question.path):
        usage = _event_stream(told, include_usage=True).removeprefix(_event_stream(told))
        if not msgspec.json.decode(usage.removeprefix(b"data: "))["usage"]:
            found.append(f"its usage is none: {usage!r}")
        if forms[-1][1].usage_count:
            found.append("its events tell the usage, and its usage event too")
    return found


def _form_flaws(
    question: WorkloadQuestion, said: ParsedAnswer, generation: LoggedGeneration, store: GenerationIndex
) -> list[str]:
    return [
        *said.flaws,
        *text_flaws(question, said.text, complete=True),
        *finish_flaws(said, cached=True),
        *id_flaws(said, generation, store),
    ]


def _parse_forms(told: Mapping[str, bytes]) -> list[tuple[str, ParsedAnswer]]:
    """What each form of an entry says: the answer as JSON, its events, or both. Raises KeyError where it has none."""
    forms = []
    if "stream" not in told or is_lossless(told["stream"]):
        body = msgspec.json.decode(told["body"])
        forms.append(("body", parse_json_answer(_path_of(body), body)))
    if "stream" in told:
        frames = [_DATA.search(frame) for frame in _event_stream(told).split(b"\n\n") if frame]
        events = [msgspec.json.decode(frame[1]) for frame in frames if frame is not None]
        forms.append(("stream", parse_events(_path_of(events[0]), events)))
    return forms


def _event_stream(told: Mapping[str, bytes], *, include_usage: bool = False) -> bytes:
    return decode_stream(told["stream"], told["body"], include_usage=include_usage, end=b"")


def _path_of(answer: dict[str, Any]) -> str:
    """Which endpoint's it is, a JSON answer or an event of a stream."""
    kind = str(answer.get("type", answer.get("object")))
    if kind == "list":
        return "/v1/embeddings"
    return _TYPED.get(kind.partition(".")[0].partition("_")[0]) or _PATHS[kind]
