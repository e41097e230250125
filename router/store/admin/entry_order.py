"""The orders of a listing of entries, and the cursors with which its pages begin."""

import math
from typing import Final, Literal, get_args

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.key_parts import KeyParts
from router.core.cache.redis_keys import hits_key
from router.errors import bad_request
from router.net.redis.commands import Command
from router.store.admin.field_values import parse_number
from router.store.admin.scan import RedisClient, execute_commands

Order = Literal["key", "age", "hits", "tokens", "saved"]
"""By key; the newest first; else the largest first. `saved`: the seconds of generation that its hits saved."""

ORDERS: Final[tuple[Order, ...]] = get_args(Order)

Rank = tuple[float, str]
"""What orders an entry: minus the amount, then its key. The first entry has the smallest."""


async def rank_entries(client: RedisClient, order: Order, keys: list[str]) -> list[Rank]:
    """In the order of `keys`. An amount that is absent or cannot be read counts as 0. Raises RedisBackendError."""
    # Nothing is read for the order in which every other listing is.
    if order == "key":
        return [(0.0, key) for key in keys]
    commands: list[Command] = []
    for key in keys:
        commands += [("HMGET", key, "created", "completion_tokens", "generation_ms"), hit_count_command(key)]
    replies = await execute_commands(client, commands)
    ranks = []
    for key, values, hits in zip(keys, replies[::2], replies[1::2], strict=True):
        created, tokens, milliseconds = (parse_number(value) or 0.0 for value in values or (None,) * 3)
        count = parse_number(hits) or 0.0
        amounts = {"age": created, "hits": count, "tokens": tokens, "saved": count * milliseconds / 1000}
        ranks.append((-amounts[order], key))
    return ranks


def hit_count_command(key: str) -> Command:
    return ("ZSCORE", hits_key(KeyParts.parse(key).tenant), key)


def encode_cursor(order: Order, rank: Rank) -> str:
    """Its key; before it, the amount, unless the order is that of the keys."""
    amount, key = rank
    return key if order == "key" else f"{-amount!r}/{key}"


def decode_cursor(order: Order, cursor: str) -> Rank:
    """Raises ApiError (400)."""
    if order == "key":
        return 0.0, cursor
    amount, _, key = cursor.partition("/")
    try:
        rank = -float(amount), key
    except ValueError:
        rank = math.nan, key
    # NaN would compare as larger than nothing, and the page would be empty.
    if math.isnan(rank[0]) or not EntryFilter(all=True).matches(key):
        raise bad_request("`cursor` must be one of a page in the same order.", param="cursor", code="invalid_query")
    return rank


def parse_order(text: str) -> Order:
    """Raises ApiError (400)."""
    for order in ORDERS:
        if order == text:
            return order
    raise bad_request(f"`sort` must be one of {', '.join(ORDERS)}.", param="sort", code="invalid_query")
