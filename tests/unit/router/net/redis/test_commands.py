"""Commands as they go over the wire."""

from router.net.redis.commands import form, later, pack
from router.net.redis.slots import slot_of


def test_a_form_that_is_filled_is_the_command_packed() -> None:
    filled = form("SET", None, "100 %", None, 5) % (1, b"k", 3, b"a%b")
    assert filled == pack(("SET", "k", "100 %", "a%b", 5))


def test_a_packed_command_has_the_slot_of_its_key() -> None:
    for command in [("GET", "key"), ("EVAL", "return 1", 1, "key", "x"), ("PING",)]:
        packed = pack(command)
        assert slot_of(packed) == slot_of(later(packed)) == slot_of(command)
