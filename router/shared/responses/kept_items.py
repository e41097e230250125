"""Items of kept responses by their ids, for references to them.

Theory of operation. The index says which response has an item (item_index), then the outputs of these responses are
read: two round trips for up to a hundred responses. What is read must have the digest of the index, so that an id which
two conversations share never gives the wrong item. A reference is a use of its response, and prolongs its life.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from router.core.cache.redis_keys import response_key
from router.core.endpoints.conversations.item_references import referable_items
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.net.redis.commands import Command
from router.net.redis.pipeline import RedisDownError, RedisPipeline
from router.shared.responses.item_index import ItemPlace, decode_places, find_command, touch_command

_BATCH: Final = 100
"""Responses that are read at once, so that commands of other requests come between."""


class ItemNotFoundError(Exception):
    """There is no such item, or its response is gone, or nobody knows which one is meant."""

    def __init__(self, id_: str) -> None:
        super().__init__(id_)
        self.id = id_


class KeptItems:
    """- Each tenant finds its own items alone, at every process as soon as their response is stored.
    - An item is as its response has it, or it is not found.
    - The responses of the items are kept for another `ttl`.
    - Raises RedisDownError where Redis does not answer, and also where it refuses to be read.
    """

    def __init__(self, pipeline: RedisPipeline, *, ttl: float, clock: Callable[[], float]) -> None:
        """`ttl`: seconds. `clock`: see CacheLookup."""
        self._pipeline = pipeline
        self._ttl_ms = max(1, int(1000 * ttl))
        self._clock = clock

    async def find(self, tenant: str, ids: Iterable[str], allocate: Callable[[int], None]) -> dict[str, bytes]:
        """The items by their ids. `allocate` gets how many bytes will be read, and may refuse them with an exception.

        Raises ItemNotFoundError for the first one that is not there, and RedisDownError.
        """
        unique = list(dict.fromkeys(ids))
        (reply,) = await self._pipeline.execute(find_command(tenant, unique))
        if isinstance(reply, Exception):
            raise RedisDownError
        places = self._pipeline.decode(lambda values: decode_places(unique, values), reply)
        check_all_found(unique, places)
        sizes = {place.response_id: place.size for place in places.values()}
        allocate(sum(sizes.values()))
        outputs: dict[str, bytes] = {}
        response_ids = list(sizes)
        for start in range(0, len(response_ids), _BATCH):
            batch = response_ids[start : start + _BATCH]
            outputs |= await self._outputs(tenant, batch, sum([sizes[id_] for id_ in batch]))
        found = read_items(places, outputs)
        check_all_found(unique, found)
        return found

    async def _outputs(self, tenant: str, response_ids: Sequence[str], size: int) -> dict[str, bytes]:
        keys = [response_key(tenant, id_) for id_ in response_ids]
        replies = await self._pipeline.execute(
            *[output_command(key) for key in keys],
            # If Redis takes no writes, the items are found nevertheless.
            *[("PEXPIRE", key, self._ttl_ms) for key in keys],
            touch_command(tenant, self._ttl_ms, int(1000 * self._clock()), response_ids),
            size=size,
        )
        read = replies[: len(keys)]
        if any(isinstance(reply, Exception) for reply in read):
            raise RedisDownError
        return self._pipeline.decode(lambda values: decode_outputs(response_ids, values), read)


def output_command(key: str) -> Command:
    return ("HGET", key, "output")


def decode_outputs(response_ids: Sequence[str], replies: Sequence[Any]) -> dict[str, bytes]:
    """The items of the outputs that are there. Raises any exception for replies that `output_command` cannot have."""
    found = zip(response_ids, replies, strict=True)
    return {id_: bytes(output[1:-1]) for id_, output in found if output is not None}


def read_items(places: Mapping[str, ItemPlace], outputs: Mapping[str, bytes]) -> dict[str, bytes]:
    """The items that are as the index says. `places`: by the ids of items; `outputs`: by those of responses."""
    texts: dict[tuple[str, str, str], bytes] = {}
    for response_id, output in outputs.items():
        try:
            items = referable_items(output)
        except MALFORMED_RESPONSE_ERRORS:
            continue
        texts |= {(response_id, item.id, item.digest): item.text for item in items}
    wanted = {id_: texts.get((place.response_id, id_, place.digest)) for id_, place in places.items()}
    return {id_: text for id_, text in wanted.items() if text is not None}


def check_all_found(ids: Iterable[str], found: Mapping[str, object]) -> None:
    """Raises ItemNotFoundError."""
    for id_ in ids:
        if id_ not in found:
            raise ItemNotFoundError(id_)
