"""Which responses of a tenant are kept, and which leave: its index, in scripts that change it at once.

    rh:1:response:{tenant}    a sorted set: the ids, by when each was last used, in ms
    its response_sizes_key    a hash: the bytes of each id, and how many there are, with all their bytes

Both have the same slot in a cluster. An id that is stored again keeps the larger of its sizes: which one the record has
is decided elsewhere, so the sum is never below what is there, unless Redis has evicted one of the two keys. The hash
also says which response has an item; see item_index.
"""

from typing import Any, Final, NamedTuple

from router.core.cache.redis_keys import response_sizes_key, responses_key
from router.net.redis.commands import Command
from router.shared.responses.item_index import FORGET_ITEMS

BYTES_FIELD: Final = ":bytes"
COUNT_FIELD: Final = ":count"
"""Of the hash; no id of a response has a colon."""

# ZINCRBY and ZREVRANGE rather than ZADD and ZRANGE: the router's ACL has them.
_FORGET: Final = f"""{FORGET_ITEMS}
local function forget(id)
  local size = redis.call('HGET', KEYS[2], id)
  if not size then return 0 end
  redis.call('HDEL', KEYS[2], id)
  redis.call('HINCRBY', KEYS[2], ':count', -1)
  redis.call('HINCRBY', KEYS[2], ':bytes', -size)
  return tonumber(size)
end
"""

# ARGV: the time to live in ms, the time in ms, how many ids and how many bytes stay, the bytes of the new id, the new
# id, and those before it. Returns the ids that have left; those that have expired as well leave without a word. The new
# one stays if it is alone.
USE_SCRIPT: Final = f"""{_FORGET}
local now, most, size, new = tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
for at = 6, #ARGV do
  local used = redis.call('ZSCORE', KEYS[1], ARGV[at])
  if used or at == 6 then redis.call('ZINCRBY', KEYS[1], now - (used or 0), ARGV[at]) end
end
local sums = redis.call('HMGET', KEYS[2], new, ':bytes')
local total = tonumber(sums[2] or 0)
if tonumber(sums[1] or -1) < size then
  total = total + size - forget(new)
  redis.call('HSET', KEYS[2], new, size)
  redis.call('HINCRBY', KEYS[2], ':count', 1)
  redis.call('HINCRBY', KEYS[2], ':bytes', size)
end
local gone = redis.call('ZREVRANGE', KEYS[1], ARGV[3], -1)
if #gone > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[3]) end
for _, id in ipairs(gone) do
  total = total - forget(id)
  forget_items(id)
end
local expired = 0
while true do
  local oldest = redis.call('ZREVRANGE', KEYS[1], -1, -1, 'WITHSCORES')
  local is_over = total > most
  local has_expired = expired < 100 and #oldest > 0 and tonumber(oldest[2]) <= now - ARGV[1]
  if #oldest == 0 or not (is_over or has_expired) then break end
  if #redis.call('ZREVRANGE', KEYS[1], 0, 1) == 1 then
    if is_over then
      redis.call('DEL', KEYS[2])
      redis.call('HSET', KEYS[2], oldest[1], size, ':count', 1, ':bytes', size)
    end
    break
  end
  redis.call('ZREM', KEYS[1], oldest[1])
  total = total - forget(oldest[1])
  forget_items(oldest[1])
  if has_expired then expired = expired + 1 else gone[#gone + 1] = oldest[1] end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return gone
"""

REMOVE_SCRIPT: Final = f"""{_FORGET}
redis.call('ZREM', KEYS[1], ARGV[1])
forget(ARGV[1])
forget_items(ARGV[1])
return 1
"""

# ARGV: how many ids and how many bytes stay. Of the ids that have room, a tenth were used since the time that it
# returns; 0 if there are fewer.
CROWDING_SCRIPT: Final = """
local fit = tonumber(ARGV[1])
local sums = redis.call('HMGET', KEYS[2], ':count', ':bytes')
if sums[1] and sums[2] and tonumber(sums[2]) > 0 then fit = math.min(fit, ARGV[2] * sums[1] / sums[2]) end
local place = math.floor(fit / 10)
return redis.call('ZREVRANGE', KEYS[1], place, place, 'WITHSCORES')[2] or '0'
"""


class ResponseIndex(NamedTuple):
    """The commands for an index. `max_count`, `max_bytes`: what a tenant may have."""

    ttl_ms: int
    max_count: int
    max_bytes: int

    def use(self, tenant: str, now: int, id_: str, size: int, earlier: tuple[str, ...]) -> Command:
        """`id_`: a response of `size` bytes that is stored. `earlier`: the turns before it, which it uses.

        The reply has the ids that have left; see `left_ids`.
        """
        return (
            "EVAL", USE_SCRIPT, 2, responses_key(tenant), response_sizes_key(tenant), self.ttl_ms, now, self.max_count,
            self.max_bytes, size, id_, *earlier,
        )  # fmt: skip

    def crowding(self, tenant: str) -> Command:
        """Those that were used before the time in the reply, in ms, may soon have to leave."""
        return (
            "EVAL", CROWDING_SCRIPT, 2, responses_key(tenant), response_sizes_key(tenant), self.max_count,
            self.max_bytes,
        )  # fmt: skip


def remove_command(tenant: str, id_: str) -> Command:
    return ("EVAL", REMOVE_SCRIPT, 2, responses_key(tenant), response_sizes_key(tenant), id_)


def left_ids(reply: Any) -> list[str]:
    """Of a reply that is none of ResponseIndex.use, none."""
    return [id_.decode("ascii", "replace") for id_ in reply if type(id_) is bytes] if isinstance(reply, list) else []
