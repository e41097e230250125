"""The encoding of commands."""

from router.net.redis.commands import after_previous, command_template, encode_command
from router.net.redis.slots import command_slot


def test_a_filled_template_is_the_encoded_command() -> None:
    filled = command_template("SET", None, "100 %", None, 5) % (1, b"k", 3, b"a%b")
    assert filled == encode_command(("SET", "k", "100 %", "a%b", 5))


def test_an_encoded_command_has_the_slot_of_its_key() -> None:
    for command in [("GET", "key"), ("EVAL", "return 1", 1, "key", "x"), ("PING",)]:
        packed = encode_command(command)
        assert command_slot(packed) == command_slot(after_previous(packed)) == command_slot(command)
