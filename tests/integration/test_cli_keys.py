"""`roundhouse keys`: random keys, and their hashes as in the configuration."""

import hashlib
from pathlib import Path

import pytest

from tests.support.cli_helpers import run_cli, run_cli_in_terminal
from tests.support.configurations import MINIMAL, OTHER_HASH, parse_config

HASH = "sha256:" + hashlib.sha256(b"a-key").hexdigest()


async def test_a_new_key_is_printed_with_its_line_for_the_configuration() -> None:
    result = await run_cli("keys", "new")
    key, hashed = result.stdout.splitlines()
    assert (result.code, result.stderr) == (0, "")
    assert key.startswith("rh-")
    assert len(key) > 40
    assert hashed == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert parse_config(f'[auth]\nadmin_keys = ["{hashed}"]\n{MINIMAL}').auth.admin_keys == [hashed]


async def test_no_two_keys_are_the_same() -> None:
    results = [(await run_cli("keys", "new", "--json")).json() for _ in range(2)]
    assert results[0]["key"] != results[1]["key"]
    assert results[0]["hash"] == "sha256:" + hashlib.sha256(results[0]["key"].encode()).hexdigest()


async def test_the_keys_of_a_configuration_are_listed_by_their_ids(tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.toml"
    config.write_text(
        f'[auth]\nadmin_keys = ["{OTHER_HASH}"]\n\n[[tenant]]\nname = "acme"\nkeys = ["{HASH}"]\n\n{MINIMAL}'
    )
    result = await run_cli("keys", "list", "--json", "-c", config)
    rows = result.json_lines()
    assert [(row["key_id"], row["role"], row["tenant"], row["source"]) for row in rows] == [
        ("ffffffff", "admin", None, "configuration"),
        (HASH.removeprefix("sha256:")[:8], "tenant", "acme", "configuration"),
    ]
    assert "Redis does not answer" in result.stderr
    assert "The keys in Redis, and when keys were last used, are unknown." in result.stderr
    table = (await run_cli("keys", "list", "-c", config)).stdout
    assert [line.split()[:3] for line in table.splitlines()[1:]] == [
        ["ffffffff", "admin", "-"], [rows[1]["key_id"], "tenant", "acme"],
    ]  # fmt: skip
    assert "ffffffffff" not in table
    made = (await run_cli("keys", "new", "--json")).json()
    assert made["hash"].startswith(f"sha256:{made['key_id']}")


@pytest.mark.parametrize("stdin", [b"a-key", b"a-key\n", b"  a-key\r\n"])
async def test_a_key_is_hashed_from_standard_input(stdin: bytes) -> None:
    result = await run_cli("keys", "hash", stdin=stdin)
    assert (result.code, result.stdout, result.stderr) == (0, HASH + "\n", "")


async def test_a_key_is_hashed_from_the_command_line() -> None:
    assert (await run_cli("keys", "hash", "a-key")).stdout == HASH + "\n"


async def test_at_a_terminal_the_key_is_prompted_for_and_not_shown() -> None:
    result = await run_cli_in_terminal("keys", "hash", prompt=b"Key", reply=b"a-key\n")
    assert (result.code, result.stdout) == (0, HASH + "\n")
    assert "a-key" not in result.stderr


@pytest.mark.parametrize("stdin", [b"", b"\n", b"one\ntwo\n", b"x" * 5000])
async def test_an_invalid_key_is_a_usage_error(stdin: bytes) -> None:
    result = await run_cli("keys", "hash", stdin=stdin)
    assert (result.code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
