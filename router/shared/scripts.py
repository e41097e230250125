"""What Redis does in one step; each script has one key, as a cluster wants it."""

from typing import Final

DELETE_IF_SAME: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
"""Deletes KEYS[1] as long as its value is ARGV[1]: whose claim has lapsed must not give up another's."""

REPLACE_IF_SAME: Final = (
    "local held = redis.call('GET', KEYS[1]) "
    "if held and held ~= ARGV[1] then return held end "
    "redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1"
)
"""Sets KEYS[1] to ARGV[2] for ARGV[3] milliseconds if it is ARGV[1] or is not there, and returns 1; else its value."""
