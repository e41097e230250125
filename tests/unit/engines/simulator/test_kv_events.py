"""The KV events of the simulator, without a socket."""

from collections.abc import Sequence as Items
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.simulator.endpoints.adapters import AdapterRegistry
from engines.simulator.engine.scheduler import Scheduler, Sequence
from engines.simulator.kv_cache.block_pool import BlockPool, block_hashes
from engines.simulator.kv_cache.kv_events import BlockOrigin, EventBatch, PublishedKvEvents
from engines.simulator.kv_cache.kv_events_config import parse_kv_events_config
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.requests import completion_request
from tests.support.paths import CAPTURES

STORED = {
    "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
}  # fmt: skip


class Subscriber:
    """A scheduler, and what its events say."""

    def __init__(self, blocks: int = 100) -> None:
        self.batches: list[Any] = []
        self._events = PublishedKvEvents(lambda data: self.batches.append(msgspec.msgpack.decode(data)), lambda: 1.5)
        self.scheduler = Scheduler(BlockPool(blocks, self._events.removed), 8, self._events)

    def run(self, tokens: Items[int], answer: Items[int] = (), origin: BlockOrigin = BlockOrigin()) -> Sequence:  # noqa: B008
        """One sequence from its start to its end."""
        sequence = Sequence(tuple(tokens), origin, lambda: None)
        self.scheduler.submit(sequence)
        self.scheduler.admit()
        for token in answer:
            self.scheduler.append_token(sequence, token)
        self.scheduler.finish(sequence)
        self._events.publish()
        return sequence

    def events(self) -> list[dict[str, Any]]:
        """All of them, in order."""
        return [event for _, events, _ in self.batches for event in events]

    def held(self) -> set[int]:
        """The hashes of the blocks that are there."""
        found: set[int] = set()
        for event in self.events():
            if event["type"] == "BlockStored":
                found.update(event["block_hashes"])
            else:
                found.difference_update(event["block_hashes"])
        return found


@pytest.mark.parametrize("line", range(2))
def test_a_batch_has_the_bytes_of_vllms(line: int) -> None:
    payload = bytes.fromhex((CAPTURES / "kv-events.txt").read_text().splitlines()[line])
    batch = msgspec.msgpack.decode(payload, type=EventBatch)
    assert msgspec.msgpack.encode(batch) == payload


def test_the_blocks_of_a_prompt_are_stored_in_one_event() -> None:
    subscriber = Subscriber()
    subscriber.run(range(40))
    hashes = block_hashes(BlockOrigin().chain_start, range(40))
    (batch,) = subscriber.batches
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": list(range(32))}
    assert batch == [1.5, [{**event, **STORED, "extra_keys": [None, None]}], 0]


def test_a_block_that_is_computed_again_is_not_stored_again() -> None:
    """Of a prompt that fills its blocks, the last token is computed each time, and its block with it."""
    subscriber = Subscriber()
    subscriber.run(range(48))
    subscriber.run(range(48))
    subscriber.run(range(40), range(40, 48))
    assert len(subscriber.events()) == 1


def test_only_what_is_not_cached_is_stored_after_its_parent() -> None:
    subscriber = Subscriber()
    subscriber.run(range(40))
    subscriber.run(range(48))
    hashes = block_hashes(BlockOrigin().chain_start, range(48))
    last = subscriber.events()[-1]
    assert (last["parent_block_hash"], last["block_hashes"]) == (hashes[1], hashes[2:])
    assert last["token_ids"] == list(range(32, 48))


def test_a_block_that_an_answer_fills_is_stored() -> None:
    subscriber = Subscriber()
    subscriber.run(range(10), range(10, 40))
    hashes = block_hashes(BlockOrigin().chain_start, range(40))
    assert [event["block_hashes"] for event in subscriber.events()] == [[hashes[0]], [hashes[1]]]
    assert [event["parent_block_hash"] for event in subscriber.events()] == [None, hashes[0]]
    assert [event["token_ids"] for event in subscriber.events()] == [list(range(16)), list(range(16, 32))]


def test_an_evicted_block_is_removed_before_the_one_that_takes_its_place_is_stored() -> None:
    subscriber = Subscriber(blocks=4)
    subscriber.run(range(48))
    subscriber.run(range(100, 132))
    first, removed, also_removed, second = subscriber.events()
    # The end of a prefix goes first.
    assert removed == {
        "type": "BlockRemoved",
        "block_hashes": first["block_hashes"][2:],
        "medium": "GPU",
        "group_idx": 0,
    }
    assert also_removed["block_hashes"] == first["block_hashes"][1:2]
    assert second["type"] == "BlockStored"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70), st.integers(0, 40)), max_size=25))
def test_who_follows_the_events_knows_what_a_prompt_finds(work: list[tuple[int, int, int]]) -> None:
    subscriber = Subscriber(blocks=10)
    for first, length, answer in work:
        prompt = [first, *range(1, length)]
        hits = 0
        for value in block_hashes(BlockOrigin().chain_start, prompt)[: (length - 1) // 16]:
            if value not in subscriber.held():
                break
            hits += 16
        assert subscriber.run(prompt, range(answer)).cached_tokens == hits


def test_the_salt_and_the_adapter_are_extra_keys() -> None:
    subscriber = Subscriber()
    subscriber.run(range(40), origin=BlockOrigin("salt"))
    subscriber.run(range(48), origin=BlockOrigin("salt"))
    subscriber.run(range(40), origin=BlockOrigin("salt", "law", 3))
    assert [event["extra_keys"] for event in subscriber.events()] == [
        [["salt"], None], [None], [["law", "salt"], ["law"]],
    ]  # fmt: skip
    assert [(event["lora_name"], event["lora_id"]) for event in subscriber.events()][1:] == [(None, None), ("law", 3)]


def test_an_adapter_shares_no_block_with_its_model() -> None:
    settings = SimulatorSettings(model="m", enable_lora=True, lora_modules=(("law", "/a"), ("sql", "/b")))
    adapters = AdapterRegistry(settings)
    origins = [
        completion_request({"prompt": [1, 2], "model": name}, adapters.settings_for(name)).origin
        for name in ("m", "law", "sql")
    ]
    assert [origin.lora_id for origin in origins] == [None, 1, 2]
    assert len({origin.chain_start for origin in origins}) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("zmq", "malformed"),
        ('{"topics": "x"}', "unknown field `topics`"),
        ('{"publisher": "kafka"}', "'kafka'"),
        ('{"buffer_steps": "many"}', "buffer_steps"),
    ],
)
def test_a_configuration_that_vllm_refuses_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"--kv-events-config: .*" + said):
        parse_kv_events_config(text)


@pytest.mark.parametrize(
    ("text", "is_published"),
    [
        ("{}", False),
        ('{"publisher": "zmq"}', False),
        ('{"enable_kv_cache_events": true}', True),
        ('{"enable_kv_cache_events": true, "publisher": "null"}', False),
    ],
)
def test_events_are_published_if_they_are_enabled(text: str, is_published: bool) -> None:
    assert parse_kv_events_config(text).is_published is is_published
