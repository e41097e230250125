"""What is stored, looked at as people see it in Redis: is it what it says, and whole?"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.stream_encoding import NOT_A_STREAM, decode_stream, is_lossless
from router.store.codec import checksum
from tests.chaos.answer_reader import Said, has_usage_of_its_own, read_json, said_by
from tests.chaos.generation_store import Generation, GenerationStore
from tests.chaos.oracle import flaws_of_end, flaws_of_ids, flaws_of_text, name_in
from tests.chaos.workload import CHAT, COMPLETIONS, Question, expected_key

_FIELDS: Final = {
    "digest", "model", "engine", "task", "created", "ttl", "prompt_tokens", "completion_tokens", "generation_ms",
    "question", "params", "body", "checksum", "format",
}  # fmt: skip
_UNREADABLE: Final = (KeyError, *NOT_A_STREAM)
_DATA: Final = re.compile(rb"^data: (.*)", re.MULTILINE)
_COUNTS: Final = ("prompt_tokens", "completion_tokens", "generation_ms")
_PATHS: Final = {"chat.completion": CHAT, "text_completion": COMPLETIONS, "chat.completion.chunk": CHAT}
_TYPED: Final = {"response": "/v1/responses", "message": "/v1/messages"}


def generation_of(fields: Mapping[bytes, bytes], store: GenerationStore) -> Generation | None:
    """The generation that an entry is of; None where that cannot be read."""
    try:
        name = name_in(_forms({name.decode(): value for name, value in fields.items()})[0][1].text)
    except _UNREADABLE:
        return None
    return store.find(name) if name is not None else None


def flaws(key: str, fields: Mapping[bytes, bytes], left: int, store: GenerationStore) -> list[str]:
    """What is wrong with an entry that has so many milliseconds left."""
    told = {name.decode(): value for name, value in fields.items()}
    try:
        return _flaws(key, told, left, store)
    except _UNREADABLE as error:
        return [f"it cannot be read: {error!r}: {told}"]


def _flaws(key: str, told: dict[str, bytes], left: int, store: GenerationStore) -> list[str]:
    if missing := _FIELDS - told.keys():
        return [f"it has no {', '.join(sorted(missing))}"]
    forms = _forms(told)
    generation = store.find(name_in(forms[0][1].text) or "")
    if generation is None:
        return [f"nobody has generated it: {forms[0][1].text!r}"]
    origin = generation.origin
    due, lives = expected_key(origin.tenant, origin.question), float(told["ttl"])
    checks = {
        f"it is the answer to {origin}, whose key is {due.text}": key == due.text,
        f"its digest is {told['digest']!r}": told["digest"] == due.digest.encode(),
        f"nobody was to keep the answer to {origin}": origin.wish.name != "no-store" and origin.wish.ttl != 0,
        f"its ttl is {lives} s, for {origin}": lives == origin.lives,
        f"it stays for another {left} ms, with a ttl of {lives} s": left <= (lives + origin.beyond) * 1000,
        f"its model is {told['model']!r}": told["model"] == origin.question.model.encode(),
        f"its engine is {told['engine']!r}": told["engine"] == generation.engine.encode(),
        f"its task is {told['task']!r}": told["task"] in (b"chat", b"code"),
        f"its checksum is {told['checksum']!r}": told["checksum"].decode()
        == checksum(told["body"], told.get("stream")),
        "its counts are none": all(int(told[name]) >= 0 for name in _COUNTS) and float(told["created"]) > 0,
    }
    found = [flaw for flaw, well in checks.items() if not well]
    for name, said in forms:
        found += [f"{flaw}, in {name}" for flaw in _flaws_of_form(origin.question, said, generation, store)]
    if "stream" in told and not _events_of(told).endswith(b"\n\n"):
        found.append(f"its events have no end: {_events_of(told)[-300:]!r}")
    if "stream" in told and not has_usage_of_its_own(origin.question.path):
        usage = _events_of(told, include_usage=True).removeprefix(_events_of(told))
        if not msgspec.json.decode(usage.removeprefix(b"data: "))["usage"]:
            found.append(f"its usage is none: {usage!r}")
        if forms[-1][1].usages:
            found.append("its events tell the usage, and its usage event too")
    return found


def _flaws_of_form(question: Question, said: Said, generation: Generation, store: GenerationStore) -> list[str]:
    return [
        *said.flaws,
        *flaws_of_text(question, said.text, whole=True),
        *flaws_of_end(said, kept=True),
        *flaws_of_ids(said, generation, store),
    ]


def _forms(told: Mapping[str, bytes]) -> list[tuple[str, Said]]:
    """What each form of an entry says: the answer as JSON, its events, or both. Raises KeyError where it has none."""
    forms = []
    if "stream" not in told or is_lossless(told["stream"]):
        body = msgspec.json.decode(told["body"])
        forms.append(("body", read_json(_path_of(body), body)))
    if "stream" in told:
        frames = [_DATA.search(frame) for frame in _events_of(told).split(b"\n\n") if frame]
        events = [msgspec.json.decode(frame[1]) for frame in frames if frame is not None]
        forms.append(("stream", said_by(_path_of(events[0]), events)))
    return forms


def _events_of(told: Mapping[str, bytes], *, include_usage: bool = False) -> bytes:
    return decode_stream(told["stream"], told["body"], include_usage=include_usage, end=b"")


def _path_of(answer: dict[str, Any]) -> str:
    """Which endpoint's it is, a JSON answer or an event of a stream."""
    kind = str(answer.get("type", answer.get("object")))
    if kind == "list":
        return "/v1/embeddings"
    return _TYPED.get(kind.partition(".")[0].partition("_")[0]) or _PATHS[kind]
