"""Kept responses of /v1/responses, read as an administrator's command reads Redis.

The functions raise RedisBackendError, and an error for what is not there: ResponseNotFoundError or ItemNotFoundError.
"""

from collections.abc import Callable, Iterable, Sequence

from router.core.cache.redis_keys import response_key
from router.net.redis.replies import decode_reply
from router.shared.responses.item_index import decode_places, find_command
from router.shared.responses.kept_items import check_all_found, decode_outputs, output_command, read_items
from router.shared.responses.kept_response import (
    EARLIER_FIELDS,
    TURN_FIELDS,
    Conversation,
    EarlierTurn,
    KeptResponse,
    ResponseNotFoundError,
    assemble,
    decode_earlier_turns,
    decode_turn,
)
from router.store.admin.scan import BATCH_SIZE, RedisClient, execute_commands


async def find_response(client: RedisClient, tenant: str, id_: str) -> KeptResponse:
    (reply,) = await execute_commands(client, [("HMGET", response_key(tenant, id_), *TURN_FIELDS)])
    found = decode_reply(lambda fields: decode_turn(id_, fields), reply) if reply is not None else None
    if found is None:
        raise ResponseNotFoundError
    return found


async def read_conversation(client: RedisClient, tenant: str, last: KeptResponse) -> Conversation:
    known = await _earlier_turns(client, tenant, last.ancestors)
    while isinstance(found := assemble(last, known), str):
        other = await _earlier_turns(client, tenant, [found])
        if not other:
            raise ResponseNotFoundError
        known |= other
    return found


async def find_items(
    client: RedisClient, tenant: str, ids: Iterable[str], check: Callable[[int], None]
) -> dict[str, bytes]:
    """By their ids. `check` gets how many bytes will be read, and may refuse them with an exception.

    It prolongs no lives, as KeptItems does.
    """
    unique = list(dict.fromkeys(ids))
    (reply,) = await execute_commands(client, [find_command(tenant, unique)])
    places = decode_reply(lambda values: decode_places(unique, values), reply) if reply is not None else {}
    check_all_found(unique, places)
    sizes = {place.response_id: place.size for place in places.values()}
    check(sum(sizes.values()))
    outputs: dict[str, bytes] = {}
    response_ids = list(sizes)
    for start in range(0, len(response_ids), BATCH_SIZE):
        batch = response_ids[start : start + BATCH_SIZE]
        replies = await execute_commands(client, [output_command(response_key(tenant, id_)) for id_ in batch])
        outputs |= decode_outputs(batch, replies)
    found = read_items(places, outputs)
    check_all_found(unique, found)
    return found


async def _earlier_turns(client: RedisClient, tenant: str, ids: Sequence[str]) -> dict[str, EarlierTurn]:
    found: dict[str, EarlierTurn] = {}
    for start in range(0, len(ids), BATCH_SIZE):
        batch = ids[start : start + BATCH_SIZE]
        replies = await execute_commands(
            client, [("HMGET", response_key(tenant, id_), *EARLIER_FIELDS) for id_ in batch]
        )
        there = [(id_, reply) for id_, reply in zip(batch, replies, strict=True) if reply is not None]
        found |= decode_earlier_turns([id_ for id_, _ in there], [reply for _, reply in there])
    return found
