"""The look at what is stored notices an entry that is not whole, or not due."""

import json
from dataclasses import replace

import pytest

from router.core.endpoints.delta_template import StreamParts
from router.core.endpoints.stream_encoding import encode_stream
from router.store.codec import checksum
from tests.chaos.entry_checks import entry_flaws, entry_generation
from tests.chaos.test_oracle import ENGINE, KEPT, MINE, OTHERS, answer, events, noted
from tests.chaos.workload import CACHE_DIRECTIVES, RequestOrigin, expected_key

USAGE = b'data: {"usage": {"prompt_tokens": 3}}\n\n'


def json_entry(origin: RequestOrigin = KEPT, body: bytes | None = None, **fields: bytes) -> dict[bytes, bytes]:
    key = expected_key(origin.tenant, origin.question)
    whole = {
        "digest": key.digest.encode(), "model": b"llama", "engine": ENGINE.encode(), "task": b"chat", "created": b"1.5",
        "ttl": b"6.0", "prompt_tokens": b"3", "completion_tokens": b"9", "generation_ms": b"7", "question": b"0",
        "params": b"0", "body": json.dumps(answer(origin)).encode() if body is None else body, "format": b"2", **fields,
    }  # fmt: skip
    checked = {"checksum": checksum(whole["body"], whole.get("stream")).encode(), **whole}
    return {name.encode(): value for name, value in checked.items()}


def entry(
    origin: RequestOrigin = KEPT, said: list[bytes] | None = None, body: bytes | None = None, *, lossless: bool = True,
    usage: bytes | None = USAGE, **fields: bytes,
) -> dict[bytes, bytes]:  # fmt: skip
    """An entry of a stream that said this."""
    parts = StreamParts()
    for event in events(origin) if said is None else said:
        parts.append(event)
    body = json.dumps(answer(origin)).encode() if body is None else body
    stream = encode_stream(parts, body, usage, lossless=lossless)
    return json_entry(origin, body, **{"stream": stream, **fields})


def flaws_of(fields: dict[bytes, bytes], left: int = 1) -> list[str]:
    return entry_flaws(expected_key(KEPT.tenant, KEPT.question).text, fields, left, noted())


WELL = [entry(), json_entry(), entry(body=b'{"text": "for people"}', lossless=False)]


@pytest.mark.parametrize("whole", WELL, ids=["a stream", "JSON", "a stream that makes no JSON"])
def test_a_complete_entry_is_valid_in_every_form(whole: dict[bytes, bytes]) -> None:
    assert flaws_of(whole, left=3_606_000) == []
    generation = entry_generation(whole, noted())
    assert generation is not None
    assert generation.origin == KEPT


FAULTY = {
    "stays too long": entry(),
    "another digest": entry(digest=b"0" * 64),
    "another ttl": entry(ttl=b"600.0"),
    "another engine": entry(engine=b"llama-code"),
    "a part of the events": entry(said=events(KEPT)[:1]),
    "events without an end": entry(said=[*events(KEPT)[:1], events(KEPT)[1][:-1]]),
    "no finish reason": entry(said=events(KEPT, finish=None)),
    "events of two generations": entry(said=[*events(KEPT)[:1], *events(MINE)[1:]]),
    "a body that is cut": json_entry(body=json_entry()[b"body"][:-9]),
    "no choice": json_entry(body=json.dumps(answer(KEPT, choices=[])).encode()),
    "a body and a stream of two generations": entry(MINE, body=json_entry()[b"body"]),
    "no usage event": entry(usage=None),
    "a stream that is cut": entry(stream=entry()[b"stream"][:-9]),
    "another checksum": entry(checksum=b"0" * 16),
    "another question": entry(OTHERS[0]),
    "not to be stored": entry(replace(KEPT, directive=CACHE_DIRECTIVES["no-store"], serial=3)),
    "nobody generated it": entry(replace(KEPT, serial=99)),
    "a field is missing": {name: value for name, value in entry().items() if name != b"params"},
    "no body": {name: value for name, value in entry().items() if name != b"body"},
}


@pytest.mark.parametrize("name", FAULTY)
def test_an_incomplete_or_purged_entry_is_reported(name: str) -> None:
    assert flaws_of(FAULTY[name], 3_606_001 if name == "stays too long" else 1) != []
