"""The look at what is stored notices an entry that is not whole, or not due."""

import json
from dataclasses import replace
from typing import Any

import pytest
from entries import flaws, generation_of
from questions import WISHES, Origin, expected_key
from test_judging import ENGINE, KEPT, MINE, OTHERS, answer, events, noted


def entry(origin: Origin = KEPT, **fields: bytes) -> dict[bytes, bytes]:
    key = expected_key(origin.tenant, origin.question)
    whole = {
        "digest": key.digest.encode(), "model": b"llama", "engine": ENGINE.encode(), "task": b"chat", "created": b"1.5",
        "ttl": b"6.0", "prompt_tokens": b"3", "completion_tokens": b"9", "generation_ms": b"7", "question": b"0",
        "params": b"0", "frames": b"".join(events(origin)),
        "usage_frame": b'data: {"usage": {"prompt_tokens": 3}}\n\n', **fields,
    }  # fmt: skip
    return {name.encode(): value for name, value in whole.items()}


def json_entry(**fields: Any) -> dict[bytes, bytes]:
    whole = {name: value for name, value in entry().items() if name not in (b"frames", b"usage_frame")}
    return {**whole, b"body": json.dumps(answer(KEPT, **fields)).encode()}


def flaws_of(fields: dict[bytes, bytes], left: int = 1) -> list[str]:
    return flaws(expected_key(KEPT.tenant, KEPT.question).text, fields, left, noted())


def test_a_whole_entry_is_well_in_either_form_and_in_both() -> None:
    for whole in (entry(), json_entry(), {**json_entry(), **entry()}):
        assert flaws_of(whole, left=3_606_000) == []
        generation = generation_of(whole, noted())
        assert generation is not None
        assert generation.origin == KEPT


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        (entry(), 3_606_001),
        (entry(digest=b"0" * 64), 1),
        (entry(ttl=b"600.0"), 1),
        (entry(engine=b"llama-code"), 1),
        (entry(frames=events(KEPT)[0]), 1),
        (entry(frames=b"".join(events(KEPT))[:-1]), 1),
        (entry(frames=b"".join(events(KEPT, finish=None))), 1),
        (entry(frames=b"".join([*events(KEPT)[:1], *events(MINE)[1:]])), 1),
        ({**json_entry(), b"body": json_entry()[b"body"][:-9]}, 1),
        (json_entry(choices=[]), 1),
        ({**json_entry(), **entry(MINE)}, 1),  # two forms, of two generations
        (entry(OTHERS[0]), 1),
        (entry(replace(KEPT, wish=WISHES["no-store"], serial=3)), 1),
        (entry(replace(KEPT, serial=99)), 1),
        ({name: value for name, value in entry().items() if name != b"params"}, 1),
    ],
)
def test_an_entry_that_is_not_whole_or_not_due_is_noticed(fields: dict[bytes, bytes], left: int) -> None:
    assert flaws_of(fields, left) != []
