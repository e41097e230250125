"""Which kept response has an item: fields of the hash at the tenant's response_sizes_key.

    item:{id}         how many responses have an item with this id, one of them, the bytes of its output, and the digest
                      of the item
    items:{response}  the ids of the items of a response

An item that came in several responses is found in the last of them. If that one leaves, the response is `?`: the others
are not known. If two items have the id, the digest is `?`: as long as a response with one of them is kept, nobody knows
which one is meant.

The fields leave with the response; see response_index. A response that is stored again with other items loses those of
before.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from router.core.cache.redis_keys import response_sizes_key, responses_key
from router.core.endpoints.conversations.item_references import OutputItem
from router.net.redis.commands import Command

_ITEM: Final = "item:"
_KNOWN: Final = re.compile(rb"[0-9]+ ([A-Za-z0-9_-]+) ([0-9]{1,15}) ([0-9a-f]+)")

# The hash is the last key of each script.
FORGET_ITEMS: Final = """
local function forget_item(name, id)
  local held = redis.call('HGET', KEYS[#KEYS], 'item:' .. name) or ''
  local count, response, rest = string.match(held, '^(%d+) (%S+) (.+)$')
  if not count or count == '1' then
    redis.call('HDEL', KEYS[#KEYS], 'item:' .. name)
    return
  end
  if response == id then response = '?' end
  redis.call('HSET', KEYS[#KEYS], 'item:' .. name, count - 1 .. ' ' .. response .. ' ' .. rest)
end
local function forget_items(id)
  local names = redis.call('HGET', KEYS[#KEYS], 'items:' .. id)
  if not names then return end
  for name in string.gmatch(names, '%S+') do forget_item(name, id) end
  redis.call('HDEL', KEYS[#KEYS], 'items:' .. id)
end
"""
"""For the scripts of response_index."""

# ARGV: the id of a response, the bytes of its output, and of each item the id and the digest. Only of a response that
# the index has.
ADD_SCRIPT: Final = f"""{FORGET_ITEMS}
local id, counted, names, listed = ARGV[1], {{}}, {{}}, {{}}
if not redis.call('HGET', KEYS[1], id) then return 0 end
local before = redis.call('HGET', KEYS[1], 'items:' .. id) or ''
for name in string.gmatch(before, '%S+') do counted[name] = true end
for at = 3, #ARGV, 2 do
  local name, digest = ARGV[at], ARGV[at + 1]
  local held = redis.call('HGET', KEYS[1], 'item:' .. name) or ''
  local count, known = string.match(held, '^(%d+) .* (%S+)$')
  if known and known ~= digest then digest = '?' end
  if not count or not counted[name] then count = (count or 0) + 1 end
  redis.call('HSET', KEYS[1], 'item:' .. name, count .. ' ' .. id .. ' ' .. ARGV[2] .. ' ' .. digest)
  if not listed[name] then names[#names + 1] = name end
  counted[name], listed[name] = true, true
end
for name in string.gmatch(before, '%S+') do
  if not listed[name] then forget_item(name, id) end
end
redis.call('HSET', KEYS[1], 'items:' .. id, table.concat(names, ' '))
return 1
"""

# ARGV: the time to live in ms, the time in ms, and the ids of responses that are used.
TOUCH_SCRIPT: Final = """
for at = 3, #ARGV do
  local used = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if used then redis.call('ZINCRBY', KEYS[1], ARGV[2] - used, ARGV[at]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
"""


class ItemPlace(NamedTuple):
    """Where an item is. `size`: bytes of the output of that response."""

    response_id: str
    size: int
    digest: str


def add_command(tenant: str, response_id: str, size: int, items: Sequence[OutputItem]) -> Command:
    """`size`: bytes of the output."""
    words = [word for item in items for word in (item.id, item.digest)]
    return ("EVAL", ADD_SCRIPT, 1, response_sizes_key(tenant), response_id, size, *words)


def touch_command(tenant: str, ttl_ms: int, now: int, response_ids: Sequence[str]) -> Command:
    return ("EVAL", TOUCH_SCRIPT, 2, responses_key(tenant), response_sizes_key(tenant), ttl_ms, now, *response_ids)


def find_command(tenant: str, item_ids: Sequence[str]) -> Command:
    return ("HMGET", response_sizes_key(tenant), *[_ITEM + id_ for id_ in item_ids])


def decode_places(item_ids: Sequence[str], reply: Any) -> dict[str, ItemPlace]:
    """Those that are known. Raises any exception for a reply that `find_command` cannot have."""
    found = {}
    for id_, value in zip(item_ids, reply, strict=True):
        known = _KNOWN.fullmatch(value or b"")
        if known is not None:
            found[id_] = ItemPlace(known[1].decode(), int(known[2]), known[3].decode())
    return found
