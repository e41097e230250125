"""Checks the entries in Redis, as people see them there: are they complete and consistent?"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.recording.stream_encoding import STREAM_DECODE_ERRORS, decode_stream, is_lossless
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
    """The generation of an entry; None if that cannot be read."""
    try:
        name = generation_name(_parse_forms({name.decode(): value for name, value in fields.items()})[0][1].text)
    except _UNREADABLE:  # `entry_flaws` reports it
        return None
    return store.find(name) if name is not None else None


def entry_flaws(key: str, fields: Mapping[bytes, bytes], left: int, store: GenerationIndex) -> list[str]:
    decoded = {name.decode(): value for name, value in fields.items()}
    try:
        return _entry_flaws(key, decoded, left, store)
    except _UNREADABLE as error:
        return [f"it cannot be read: {error!r}: {decoded}"]


def _entry_flaws(key: str, fields: dict[str, bytes], remaining: int, store: GenerationIndex) -> list[str]:
    if missing := _FIELDS - fields.keys():
        return [f"it has no {', '.join(sorted(missing))}"]
    forms = _parse_forms(fields)
    generation = store.find(generation_name(forms[0][1].text) or "")
    if generation is None:
        return [f"nobody has generated it: {forms[0][1].text!r}"]
    origin = generation.origin
    expected, ttl = expected_key(origin.tenant, origin.question), float(fields["ttl"])
    checks = {
        f"it is the answer to {origin}, whose key is {expected.text}": key == expected.text,
        f"its digest is {fields['digest']!r}": fields["digest"] == expected.digest.encode(),
        f"nobody was to keep the answer to {origin}": origin.directive.name != "no-store" and origin.directive.ttl != 0,
        f"its ttl is {ttl} s, for {origin}": ttl == origin.ttl,
        f"it stays for another {remaining} ms, with a ttl of {ttl} s": remaining <= (ttl + origin.stale_ttl) * 1000,
        f"its model is {fields['model']!r}": fields["model"] == origin.question.model.encode(),
        f"its engine is {fields['engine']!r}": store.is_of(generation, fields["engine"].decode()),
        f"its task is {fields['task']!r}": fields["task"] in (b"chat", b"code"),
        f"its checksum is {fields['checksum']!r}": fields["checksum"].decode()
        == checksum(fields["body"], fields.get("stream")),
        "its counts are none": all(int(fields[name]) >= 0 for name in _COUNTS) and float(fields["created"]) > 0,
    }
    flaws = [flaw for flaw, holds in checks.items() if not holds]
    for name, answer in forms:
        flaws += [f"{flaw}, in {name}" for flaw in _form_flaws(origin.question, answer, generation, store)]
    if "stream" in fields and not _event_stream(fields).endswith(b"\n\n"):
        flaws.append(f"its events have no end: {_event_stream(fields)[-300:]!r}")
    if "stream" in fields and not always_sends_usage(origin.question.path):
        usage = _event_stream(fields, include_usage=True).removeprefix(_event_stream(fields))
        if not msgspec.json.decode(usage.removeprefix(b"data: "))["usage"]:
            flaws.append(f"its usage is none: {usage!r}")
        if forms[-1][1].usage_count:
            flaws.append("its events contain the usage, and its usage event too")
    return flaws


def _form_flaws(
    question: WorkloadQuestion, answer: ParsedAnswer, generation: LoggedGeneration, store: GenerationIndex
) -> list[str]:
    return [
        *answer.flaws,
        *text_flaws(question, answer.text, complete=True),
        *finish_flaws(answer, cached=True),
        *id_flaws(answer, generation, store),
    ]


def _parse_forms(fields: Mapping[str, bytes]) -> list[tuple[str, ParsedAnswer]]:
    """The forms of an entry's answer: JSON, events, or both. Raises KeyError where it has none."""
    forms = []
    if "stream" not in fields or is_lossless(fields["stream"]):
        body = msgspec.json.decode(fields["body"])
        forms.append(("body", parse_json_answer(_path_of(body), body)))
    if "stream" in fields:
        frames = [_DATA.search(frame) for frame in _event_stream(fields).split(b"\n\n") if frame]
        events = [msgspec.json.decode(frame[1]) for frame in frames if frame is not None]
        forms.append(("stream", parse_events(_path_of(events[0]), events)))
    return forms


def _event_stream(fields: Mapping[str, bytes], *, include_usage: bool = False) -> bytes:
    return decode_stream(fields["stream"], fields["body"], include_usage=include_usage, end=b"")


def _path_of(answer: dict[str, Any]) -> str:
    kind = str(answer.get("type", answer.get("object")))
    if kind == "list":
        return "/v1/embeddings"
    return _TYPED.get(kind.partition(".")[0].partition("_")[0]) or _PATHS[kind]
