"""The trials of rights."""

import pytest

from router.core.cache.redis_keys import KEY_PREFIX, RESERVED_TENANT_NAMES
from router.shared.connection.redis_rights import (
    _LOSSES,
    NEEDED_COMMANDS,
    has_all_rights,
    is_unknown,
    parse_refusal,
    sample_keys,
)
from router.shared.connection.rights_report import describe_missing


def test_every_kind_of_key_is_tried() -> None:
    kinds = {key.removeprefix(KEY_PREFIX).partition(":")[0] for _, key in sample_keys(["acme"])}
    assert kinds == {*RESERVED_TENANT_NAMES, "acme"}


def test_no_command_is_on_the_list_twice() -> None:
    names = [command.name for command in NEEDED_COMMANDS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("this user has no permissions to run the 'client|tracking' command", "command"),  # Redis 7.0
        ("this user has no permissions to run the 'client' command or its subcommand", "command"),  # Redis 6.2
        ("User app has no permissions to run the 'get' command", "command"),  # Redis 7.2
        ("this user has no permissions to access one of the keys used as arguments", "key"),
        ("No permissions to access a key", "key"),  # Redis 7.2
        ("this user has no permissions to access one of the channels used as arguments", "channel"),
        ("ERR The user executing the script can't run this command or subcommand", "command"),
        ("Write commands are not allowed from read-only scripts.", None),
        ("MOVED 1234 127.0.0.1:7001", None),
        ("wrong number of arguments for 'hset' command", None),
    ],
)
def test_only_a_lack_of_rights_is_a_refusal(text: str, of: str | None) -> None:
    refusal = parse_refusal(Exception(text))
    assert (refusal.of if refusal is not None else None) == of
    assert parse_refusal(text.encode()) is None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({b"flags": [b"off"], b"commands": b"+@all", b"keys": b"~*", b"channels": b"&*"}, True),  # Redis 7.0
        ({b"flags": [b"off"], b"commands": b"-@all", b"keys": b"", b"channels": b""}, False),
        ({b"flags": [b"on"], b"commands": b"+@all", b"keys": b"~rh:1:* ~other", b"channels": b""}, False),
        ({b"flags": [b"on"], b"commands": b"-@all +@read", b"keys": b"~*", b"channels": b"&*"}, False),
        ({b"flags": [b"on"], b"commands": b"+@all", b"keys": [b"*"], b"channels": [b"*"]}, True),  # Redis 6.2
        ({b"flags": [b"off"], b"commands": b"-@all", b"keys": [], b"channels": []}, False),
        (Exception("this user has no permissions to run the 'acl|getuser' command"), None),
        ({b"flags": [b"on"]}, None),
        ([b"commands", b"+@all"], None),
        (None, None),
    ],
)
def test_the_rights_of_a_user_are_read_from_its_description(reply: object, expected: bool | None) -> None:
    assert has_all_rights(reply) is expected


@pytest.mark.parametrize(
    ("command", "reply", "expected"),
    [
        ("eval", Exception("unknown command 'EVAL', with args beginning with: "), True),
        ("client|tracking", Exception("unknown subcommand 'TRACKING'. Try CLIENT HELP."), True),
        ("client|tracking", Exception("syntax error"), True),
        ("client|tracking", Exception("User app has no permissions to run the 'client|tracking' command"), False),
        ("xadd", Exception("Invalid stream ID specified as stream command argument"), False),
        ("client|tracking", b"OK", False),
    ],
)
def test_a_server_without_a_command_is_recognised(command: str, reply: object, expected: bool) -> None:
    assert is_unknown(command, reply) is expected


def test_every_loss_belongs_to_a_command_of_requests() -> None:
    assert set(_LOSSES) <= {command.name for command in NEEDED_COMMANDS if command.use == "requests"}


def test_a_line_names_the_loss_and_what_to_grant() -> None:
    commands = {command.name: command for command in NEEDED_COMMANDS}
    denied, absent = Exception("this user has no permissions to run the 'x' command"), Exception("unknown command 'x'")
    tried = [(commands["lpush"], denied), (commands["ltrim"], denied), (commands["eval"], absent)]
    first, second = describe_missing(tried, [])
    assert first.startswith("Redis' user may not use lpush, ltrim: new engines are not warmed up")
    assert first.endswith(". ACL SETUSER USER +lpush +ltrim")
    assert second == "Redis does not have eval: nothing is cached"
