"""What Redis does in one step; each script has one key, as a cluster wants it."""

from typing import Final

DELETE_IF_SAME: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
"""Deletes KEYS[1] as long as its value is ARGV[1]: whose claim has lapsed must not give up another's."""
