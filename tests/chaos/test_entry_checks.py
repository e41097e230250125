"""The check of stored entries reports an entry that is incomplete or should not exist."""

import json
from dataclasses import replace

import pytest

from router.core.endpoints.recording.delta_template import StreamParts
from router.core.endpoints.recording.stream_encoding import encode_stream
from router.store.codec import checksum
from tests.chaos.entry_checks import entry_flaws, entry_generation
from tests.chaos.test_oracle import ENGINE, ORIGIN, OTHER_ORIGINS, STORED, answer, events, generation_index
from tests.chaos.workload import CACHE_DIRECTIVES, RequestOrigin, expected_key

USAGE = b'data: {"usage": {"prompt_tokens": 3}}\n\n'


def json_entry(origin: RequestOrigin = STORED, body: bytes | None = None, **fields: bytes) -> dict[bytes, bytes]:
    key = expected_key(origin.tenant, origin.question)
    complete_entry = {
        "digest": key.digest.encode(), "model": b"llama", "engine": ENGINE.encode(), "task": b"chat", "created": b"1.5",
        "ttl": b"6.0", "prompt_tokens": b"3", "completion_tokens": b"9", "generation_ms": b"7", "question": b"0",
        "params": b"0", "body": json.dumps(answer(origin)).encode() if body is None else body, "format": b"2", **fields,
    }  # fmt: skip
    checked = {"checksum": checksum(complete_entry["body"], complete_entry.get("stream")).encode(), **complete_entry}
    return {name.encode(): value for name, value in checked.items()}


def entry(
    origin: RequestOrigin = STORED, stored_events: list[bytes] | None = None, body: bytes | None = None, *,
    lossless: bool = True,
    usage: bytes | None = USAGE, **fields: bytes,
) -> dict[bytes, bytes]:  # fmt: skip
    """An entry of a stream with these events."""
    parts = StreamParts()
    for event in events(origin) if stored_events is None else stored_events:
        parts.append(event)
    body = json.dumps(answer(origin)).encode() if body is None else body
    stream = encode_stream(parts, body, usage, lossless=lossless)
    return json_entry(origin, body, **{"stream": stream, **fields})


def flaws_of(fields: dict[bytes, bytes], left: int = 1) -> list[str]:
    return entry_flaws(expected_key(STORED.tenant, STORED.question).text, fields, left, generation_index())


VALID = [entry(), json_entry(), entry(body=b'{"text": "for people"}', lossless=False)]


@pytest.mark.parametrize("complete_entry", VALID, ids=["a stream", "JSON", "a stream that makes no JSON"])
def test_a_complete_entry_is_valid_in_every_form(complete_entry: dict[bytes, bytes]) -> None:
    assert flaws_of(complete_entry, left=3_606_000) == []
    generation = entry_generation(complete_entry, generation_index())
    assert generation is not None
    assert generation.origin == STORED


FAULTY = {
    "stays too long": entry(),
    "another digest": entry(digest=b"0" * 64),
    "another ttl": entry(ttl=b"600.0"),
    "another engine": entry(engine=b"llama-code"),
    "a part of the events": entry(stored_events=events(STORED)[:1]),
    "events without an end": entry(stored_events=[*events(STORED)[:1], events(STORED)[1][:-1]]),
    "no finish reason": entry(stored_events=events(STORED, finish=None)),
    "events of two generations": entry(stored_events=[*events(STORED)[:1], *events(ORIGIN)[1:]]),
    "a body that is cut": json_entry(body=json_entry()[b"body"][:-9]),
    "no choice": json_entry(body=json.dumps(answer(STORED, choices=[])).encode()),
    "a body and a stream of two generations": entry(ORIGIN, body=json_entry()[b"body"]),
    "no usage event": entry(usage=None),
    "a stream that is cut": entry(stream=entry()[b"stream"][:-9]),
    "another checksum": entry(checksum=b"0" * 16),
    "another question": entry(OTHER_ORIGINS[0]),
    "not to be stored": entry(replace(STORED, directive=CACHE_DIRECTIVES["no-store"], serial=3)),
    "nobody generated it": entry(replace(STORED, serial=99)),
    "a field is missing": {name: value for name, value in entry().items() if name != b"params"},
    "no body": {name: value for name, value in entry().items() if name != b"body"},
}


@pytest.mark.parametrize("name", FAULTY)
def test_an_incomplete_or_purged_entry_is_reported(name: str) -> None:
    assert flaws_of(FAULTY[name], 3_606_001 if name == "stays too long" else 1) != []
