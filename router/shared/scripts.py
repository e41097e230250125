"""Lua scripts for atomic changes. Each has one key, so that a cluster can route it."""

from typing import Final

DELETE_IF_SAME: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
"""Deletes KEYS[1] if its value is ARGV[1]: a process whose claim has expired must not release another's claim."""

REPLACE_IF_SAME: Final = (
    "local current = redis.call('GET', KEYS[1]) "
    "if current and current ~= ARGV[1] then return current end "
    "redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1"
)
"""Sets KEYS[1] to ARGV[2] for ARGV[3] ms and returns 1 if it is ARGV[1] or does not exist; else returns its value."""
