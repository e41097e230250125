"""`roundhouse cache` as people use it: with a real Redis and a router's configuration."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from router.core.cache.entry_filter import EntryFilter
from router.core.cache.redis_keys import hits_key
from router.core.endpoints.recording.stream_encoding import decode_stream
from router.shared.responses.response_index import ResponseIndex
from tests.support.cli_helpers import CommandResult, run_cli, run_cli_in_terminal, run_cli_process
from tests.support.entry_factory import entry_key, make_entry, make_streamed_entry, redis_fields_format_1, store_entry
from tests.support.purge_log import NO_REPLICAS, logged_scopes
from tests.support.redis_process import RedisServer
from tests.support.router_server import RouterServer, chat_body, router_config
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENGINES = {"one": ("llama", "any", "http://127.0.0.1:1"), "two": ("mistral", "any", "http://127.0.0.1:2")}


@pytest.fixture
def file(redis_server: RedisServer, tmp_path: Path) -> Path:
    """A configuration file."""
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(redis_server.url, ENGINES, rest='[[tenant]]\nname = "acme"'))
    return path


async def cache(file: Path, *arguments: object, stdin: bytes = b"") -> CommandResult:
    """A command that must succeed."""
    result = await run_cli("cache", *arguments, "--config", file, stdin=stdin)
    assert result.code == 0, result.stderr
    return result


def fails_with_one_line(result: CommandResult, code: int, *words: str) -> None:
    assert (result.code, result.stdout) == (code, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("roundhouse: ")
    for word in words:
        assert word in result.stderr


# -- read -------------------------------------------------------------------------------------------------------------


async def test_stats_counts_the_entries(client: Any, file: Path) -> None:
    await store_entry(client, entry_key(1))
    await store_entry(client, entry_key(2, tenant="other"))
    await client.hset(entry_key(1), "created", f"{time.time() + 500:.3f}")  # written with a fast clock
    stats = (await cache(file, "stats", "--json")).json()
    assert stats["total"]["entries"] == 2
    result = await cache(file, "stats")
    per_token = stats["total"]["bytes_per_token"]
    assert result.stdout.startswith("2 entries (0 stale), 10 tokens, ")
    assert result.stdout.splitlines()[0].endswith(f", {per_token:.1f} bytes per token")
    table = [line.split() for line in result.stdout.splitlines()[-3:]]
    assert table[0] == ["tenant", "model", "entries", "stale", "tokens", "memory", "bytes", "per", "token"]
    assert [(*row[:5], row[-1]) for row in table[1:]] == [
        ("acme", "llama", "1", "0", "5", f"{per_token:.1f}"),
        ("other", "llama", "1", "0", "5", f"{stats['tenants']['other']['llama']['bytes_per_token']:.1f}"),
    ]
    assert "old, the newest 0s" in result.stdout
    assert result.stderr == "", "there is no terminal, so no progress is shown"


async def test_stats_has_the_kept_responses_if_there_are_any(client: Any, file: Path) -> None:
    assert "kept" not in (await cache(file, "stats")).stdout
    for tenant in ("acme", "other"):
        index = ResponseIndex(ttl_ms=60_000, max_count=10, max_bytes=10_000)
        await client.execute_command(*index.use(tenant, 1000, "resp_1", 1024, ()))
    assert "\nkept for /v1/responses: 2 responses of 2 tenants, 2.0 KiB\n" in (await cache(file, "stats")).stdout
    found = (await cache(file, "stats", "--json")).json()["responses"]
    assert found == {"acme": {"count": 1, "bytes": 1024}, "other": {"count": 1, "bytes": 1024}}


async def test_without_tokens_there_are_no_bytes_per_token(client: Any, file: Path) -> None:
    await store_entry(client, entry_key(), make_entry(completion_tokens=0))
    output = (await cache(file, "stats")).stdout.splitlines()
    assert output[0].startswith("1 entry (0 stale), 0 tokens, ")
    assert "per token" not in output[0]
    assert output[-1].endswith(" -")


async def test_ls_lists_one_entry_per_line(client: Any, file: Path) -> None:
    expected = [await store_entry(client, entry_key(number)) for number in range(3)]
    await store_entry(client, entry_key(4, tenant="other"))
    lines = (await cache(file, "ls", "--tenant", "acme", "--json")).json_lines()
    assert [line["key"] for line in lines] == expected
    table = (await cache(file, "ls", "--tenant", "acme")).stdout.splitlines()
    assert [line.split()[-1] for line in table] == ["key", *expected]


async def test_ls_shows_the_first_words_hits_and_savings_in_the_order_that_is_asked_for(
    client: Any, file: Path
) -> None:
    few = await store_entry(client, entry_key(1), make_streamed_entry("The\x1b sea " * 20))
    many = await store_entry(client, entry_key(2), make_streamed_entry("The land.", generation_ms=3000))
    await client.zadd(hits_key("acme"), {few: 2, many: 7})
    head, first, second = (await cache(file, "ls", "--sort", "hits")).stdout.splitlines()
    assert head.split() == ["age", "left", "hits", "saved", "tokens", "memory", "task", "engine", "answer", "key"]
    assert first.split()[2:4] == ["7", "21s"]
    assert "  The land.  " in first
    assert second.split()[2:4] == ["2", "0s"]
    assert "\x1b" not in second
    (line,) = (await cache(file, "ls", "--sort", "saved", "--limit", "1", "--json")).json_lines()
    assert (line["key"], line["preview"], line["hits"], line["saved_seconds"]) == (many, "The land.", 7, 21.0)
    fails_with_one_line(await run_cli("cache", "ls", "--sort", "size", "--config", file), 2, "--sort", "key, age, hits")


async def test_ls_prints_where_to_continue(client: Any, file: Path) -> None:
    expected = [await store_entry(client, entry_key(number)) for number in range(3)]
    first = await cache(file, "ls", "--limit", "2", "--json")
    assert [line["key"] for line in first.json_lines()] == expected[:2]
    assert f"--cursor {expected[1]}" in first.stderr
    rest = await cache(file, "ls", "--cursor", expected[1], "--json")
    assert ([line["key"] for line in rest.json_lines()], rest.stderr) == (expected[2:], "")


async def test_ls_without_entries_prints_nothing(client: Any, file: Path) -> None:
    assert (await cache(file, "ls")).stdout == (await cache(file, "ls", "--json")).stdout == ""


async def test_show_prints_the_text_and_the_plain_fields(client: Any, file: Path) -> None:
    entry = make_streamed_entry("The sea is wide, für alle.", documents=("handbook",))
    assert entry.stream is not None
    at = await store_entry(client, entry_key(), entry)
    events = decode_stream(entry.stream, entry.body, include_usage=True, end=b"")
    head, text, fields = (await cache(file, "show", at)).stdout.split("\n\n")
    assert head.startswith(f"{at}\n")
    assert " left; expires from Redis in " in head
    assert text == "The sea is wide, für alle."
    lines = fields.splitlines()
    assert f"body: {len(entry.body)} bytes" in lines
    assert f"stream: {len(entry.stream)} bytes; gives {len(events)} bytes of events" in lines
    assert {'documents: ["handbook"]', "engine: llama-chat", "completion_tokens: 6", "format: 2"} <= set(lines)


async def test_show_marks_a_body_that_is_only_a_readable_copy(client: Any, file: Path) -> None:
    at = await store_entry(client, entry_key(), make_streamed_entry(lossless=False))
    result = (await cache(file, "show", at)).stdout
    assert "\n\nThe sea is wide.\n\n" in result
    assert "bytes of events; the body is a readable copy only\n" in result


async def test_show_fields_prints_every_field_unchanged(client: Any, file: Path) -> None:
    entry = make_streamed_entry()
    assert entry.stream is not None
    at = await store_entry(client, entry_key(), entry)
    output = (await cache(file, "show", at, "--fields")).stdout
    assert f"body: {entry.body.decode()}\n" in output
    assert entry.stream.decode("ascii") in output
    assert "\n\nThe sea is wide.\n\n" not in output


async def test_show_json_has_the_text_and_all_fields(client: Any, file: Path) -> None:
    entry = make_streamed_entry()
    assert entry.stream is not None
    details = (await cache(file, "show", await store_entry(client, entry_key(), entry), "--json")).json()
    assert (details["text"], details["problem"]) == ("The sea is wide.", None)
    assert details["fields"]["stream"] == entry.stream.decode("ascii")
    assert details["stream"]["bytes"] == len(entry.stream)


async def test_show_lists_all_answers_that_are_kept_for_the_request(client: Any, file: Path) -> None:
    keys = [await store_entry(client, entry_key(1) + end, make_streamed_entry()) for end in ("", ".1", ".15")]
    await store_entry(client, entry_key(2), make_streamed_entry())
    for at in keys:
        head, *_ = (await cache(file, "show", at)).stdout.split("\n\n")
        first, _, count, _, *rows = head.splitlines()
        assert (first, count) == (at, "one of 3 samples:")
        assert [row.split()[-1] for row in rows] == keys
    details = (await cache(file, "show", keys[1], "--json")).json()
    assert [sample["key"] for sample in details["samples"]] == keys
    assert (await cache(file, "purge", "--key", keys[1], "--json")).json()["entries"] == 1
    details = (await cache(file, "show", keys[0], "--json")).json()
    assert [sample["key"] for sample in details["samples"]] == [keys[0], keys[2]]
    assert "samples" not in (await cache(file, "show", entry_key(2))).stdout


async def test_show_prints_a_body_of_unknown_form_unchanged(client: Any, file: Path) -> None:
    at = await store_entry(client, entry_key(), make_entry(body='{"a": "für"}'.encode(), stream=b"=nonsense"))
    output = (await cache(file, "show", at)).stdout
    assert 'body: {"a": "für"}\n' in output
    assert "stream: 9 bytes; gives no events\n" in output


async def test_show_names_another_format_and_prints_the_fields(client: Any, file: Path) -> None:
    await client.hset(entry_key(), mapping=redis_fields_format_1(make_streamed_entry()))
    output = (await cache(file, "show", entry_key())).stdout
    assert "!! written in format 1; this router reads format 2\n" in output
    assert "frames: data: {}\n" in output


async def test_show_prints_a_damaged_entry_unchanged(client: Any, file: Path) -> None:
    await client.hset(entry_key(), mapping={"body": b"\xff\x00", "created": "yesterday"})
    result = (await cache(file, "show", entry_key())).stdout
    assert "!! not a valid entry" in result
    assert "created: yesterday" in result
    assert "body: base64:/wA=" in result


async def test_a_response_text_cannot_send_control_sequences_to_the_terminal(client: Any, file: Path) -> None:
    at = await store_entry(client, entry_key(), make_streamed_entry("\x1b[2Jgone\x07"))
    output = (await cache(file, "show", at)).stdout
    assert "\x1b" not in output
    assert "\\x1b[2Jgone\\x07" in output


async def test_the_fields_of_an_entry_cannot_send_control_sequences_to_the_terminal(client: Any, file: Path) -> None:
    await client.hset(entry_key(), mapping={"body": "\x1b[2Jgone\x07", "engine": "\x1b[31mred"})
    for result in (await cache(file, "show", entry_key()), await cache(file, "ls")):
        assert "\x1b" not in result.stdout
        assert "\\x1b[31mred" in result.stdout


async def test_showing_a_missing_entry_fails(client: Any, file: Path) -> None:
    fails_with_one_line(await run_cli("cache", "show", entry_key(), "--config", file), 1, "no entry at", entry_key())
    fails_with_one_line(await run_cli("cache", "show", "nonsense", "--config", file), 2, "key")


async def test_top_lists_the_entries_with_the_most_hits(client: Any, file: Path) -> None:
    await client.zadd(hits_key("acme"), {entry_key(1): 3, entry_key(2): 9})
    await store_entry(client, entry_key(1), make_entry(completion_tokens=7))
    lines = (await cache(file, "top", "--json")).json_lines()
    assert [(line["key"], line["hits"], line["saved"]) for line in lines] == [
        (entry_key(2), 9, None),
        (entry_key(1), 3, 21),
    ]
    table = (await cache(file, "top", "--limit", "1")).stdout.splitlines()
    assert [line.split() for line in table[1:]] == [["9", "gone", entry_key(2)]]


# -- purge ------------------------------------------------------------------------------------------------------------


async def test_purge_deletes_what_is_named_without_confirmation_if_there_is_no_terminal(
    client: Any, file: Path
) -> None:
    mine, others = await store_entry(client, entry_key(1)), await store_entry(client, entry_key(2, tenant="other"))
    purged = (await cache(file, "purge", "--tenant", "acme", "--json")).json()
    assert purged == {"entries": 1, "claims": 0, "responses": 0, "replicas": NO_REPLICAS, "recorded": True}
    assert (await client.exists(mine), await client.exists(others)) == (0, 1)
    assert (await cache(file, "purge", "--all")).stdout == "purged 1 entry and 0 generations in progress\n"
    assert await logged_scopes(client) == [EntryFilter(tenant="acme"), EntryFilter(all=True)]


@pytest.mark.parametrize("part", ["key", "model", "system", "rag", "document"])
async def test_purge_accepts_every_part_of_the_key(client: Any, file: Path, part: str) -> None:
    mine = entry_key(1, model="mistral", system="a" * 16, rag="b" * 16)
    named = {"key": mine, "model": "mistral", "system": "a" * 16, "rag": "b" * 16, "document": "handbook"}
    await store_entry(client, mine, make_entry(documents=("handbook",)))
    await store_entry(client, entry_key(2))
    assert (await cache(file, "purge", f"--{part}", named[part], "--json")).json()["entries"] == 1
    assert not await client.exists(mine)


async def test_a_dry_run_only_counts(client: Any, file: Path) -> None:
    await store_entry(client, entry_key())
    assert (
        await cache(file, "purge", "--all", "--dry-run")
    ).stdout == "1 entry and the kept responses would be purged\n"
    by_model = await cache(file, "purge", "--model", "llama", "--tenant", "acme", "--dry-run")
    assert by_model.stdout == "1 entry would be purged\n"
    assert (await cache(file, "purge", "--all", "--dry-run", "--json")).json() == {"entries": 1}
    assert await client.exists(entry_key())
    assert not await logged_scopes(client)


@pytest.mark.parametrize("options", [[], ["--yes"]])
async def test_at_a_terminal_yes_confirms_the_purge(client: Any, file: Path, options: list[str]) -> None:
    await store_entry(client, entry_key())
    arguments = ["purge", "--tenant", "acme", *options, "--config", file]
    result = await run_cli_in_terminal("cache", *arguments, prompt=b"[y/N]", reply=b"y\n")
    assert (result.code, await client.exists(entry_key())) == (0, 0)
    assert ("Purge 1 entry" in result.stderr) == (options == [])
    assert result.stdout == "purged 1 entry and 0 generations in progress\n"


async def test_at_a_terminal_no_keeps_the_entries(client: Any, file: Path) -> None:
    await store_entry(client, entry_key())
    result = await run_cli_in_terminal("cache", "purge", "--all", "--config", file, prompt=b"[y/N]", reply=b"n\n")
    assert (result.code, result.stdout) == (1, "")
    assert "nothing was purged" in result.stderr
    assert await client.exists(entry_key())


@pytest.mark.parametrize("arguments", [[], ["--all", "--tenant", "acme"], ["--tenant", "*"], ["--system", "x"]])
async def test_a_purge_without_a_filter_is_a_usage_error(client: Any, file: Path, arguments: list[str]) -> None:
    await store_entry(client, entry_key())
    fails_with_one_line(await run_cli("cache", "purge", *arguments, "--config", file), 2)
    assert await client.exists(entry_key())


# -- grep -------------------------------------------------------------------------------------------------------------


async def store_bad_and_good(client: Any) -> tuple[str, str]:
    bad = await store_entry(client, entry_key(1), make_streamed_entry("The sea is DRY."))
    return bad, await store_entry(client, entry_key(2), make_streamed_entry("The sea is wet."))


async def test_grep_lists_the_entries_with_a_text(client: Any, file: Path) -> None:
    bad, _ = await store_bad_and_good(client)
    result = await cache(file, "grep", "is dry")
    assert [line.split()[-1] for line in result.stdout.splitlines()] == ["key", bad]
    assert result.stderr.startswith("1 entry of 2 searched (")
    assert result.stderr.endswith(") found\n")
    found = (await cache(file, "grep", "is dry", "--json")).json()
    assert ([entry["key"] for entry in found["entries"]], found["matches"], found["purge"]) == ([bad], 1, None)
    assert (await cache(file, "grep", "sea", "--tenant", "other", "--json")).json()["looked_at"] == 0
    assert (await cache(file, "grep", "mountain")).stdout == ""


async def test_grep_purges_what_it_finds_and_nothing_else(client: Any, file: Path) -> None:
    bad, good = await store_bad_and_good(client)
    shown = await cache(file, "grep", "is dry", "--purge", "--dry-run")
    assert "1 entry of 2 searched" in shown.stderr
    assert shown.stderr.endswith(" would be purged\n")
    assert await client.exists(bad, good) == 2
    result = await cache(file, "grep", "is dry", "--purge")
    assert result.stdout.splitlines()[-1] == "purged 1 entry and 0 generations in progress"
    assert (await client.exists(bad), await client.exists(good)) == (0, 1)
    assert await logged_scopes(client) == [EntryFilter(key=bad)]
    purged = (await cache(file, "grep", "is wet", "--purge", "--json")).json()["purge"]
    assert purged == {"entries": 1, "claims": 0, "responses": 0, "replicas": NO_REPLICAS, "recorded": True}


async def test_grep_that_could_not_search_everything_says_so(client: Any, file: Path) -> None:
    await store_bad_and_good(client)
    found = await cache(file, "grep", "sea", "--max-entries", "1")
    assert "--max-entries" in found.stderr
    purged = await run_cli("cache", "grep", "sea", "--purge", "--max-entries", "1", "--config", file)
    assert (purged.code, len(await client.keys(entry_key(1)[:-1] + "*"))) == (1, 1)
    assert "not all entries were searched" in purged.stderr


async def test_grep_for_nothing_is_a_usage_error(client: Any, file: Path) -> None:
    fails_with_one_line(await run_cli("cache", "grep", " ", "--config", file), 2, "white space")


async def test_at_a_terminal_grep_asks_before_it_purges(client: Any, file: Path) -> None:
    bad, _ = await store_bad_and_good(client)
    result = await run_cli_in_terminal(
        "cache", "grep", "is dry", "--purge", "--config", file, prompt=b"[y/N]", reply=b"n\n"
    )
    assert (result.code, await client.exists(bad)) == (1, 1)
    result = await run_cli_in_terminal("cache", "grep", "is dry", "--purge", "--yes", "--config", file)
    assert (result.code, await client.exists(bad)) == (0, 0)


# -- explain ----------------------------------------------------------------------------------------------------------


async def test_explain_tells_a_hit_from_a_miss(router: RouterServer, redis: Any, config: str, tmp_path: Path) -> None:
    file, body = tmp_path / "roundhouse.toml", tmp_path / "body.json"
    file.write_text(config)
    body.write_text(json.dumps(chat_body("Tell me about the sea.")))
    sent = await router.chat("Tell me about the sea.")
    # The router writes the entry while it replies, and the command reads over a connection of its own.
    await eventually(lambda: redis.exists(sent.headers["x-cache-key"]))
    explanation = (await cache(file, "explain", body, "--json")).json()
    assert (explanation["result"], explanation["key"]) == ("HIT", sent.headers["x-cache-key"])
    other = json.dumps(chat_body("Tell me about the sea.", model="mistral")).encode()
    output = (await cache(file, "explain", stdin=other)).stdout
    assert output.startswith("MISS")
    assert f"nearest: {sent.headers['x-cache-key']}" in output
    assert "differs in model" in output


@pytest.mark.parametrize(
    ("arguments", "body", "word"),
    [
        ([], b"nonsense", "not valid JSON"),
        ([], b"", "not valid JSON"),
        ([], json.dumps(chat_body("Hi", model="nope")).encode(), "nope"),
        (["--tenant", "nobody"], b"{}", "nobody"),
        (["--path", "/v1/nothing"], b"{}", "path"),
        (["no-such-file.json"], b"", "no-such-file.json"),
    ],
)
async def test_explaining_a_request_that_would_be_refused_is_a_usage_error(
    client: Any, file: Path, arguments: list[str], body: bytes, word: str
) -> None:
    result = await run_cli("cache", "explain", *arguments, "--config", file, stdin=body)
    fails_with_one_line(result, 2, word)


# -- export and import ------------------------------------------------------------------------------------------------


async def test_entries_exported_to_a_file_are_imported_from_it(client: Any, file: Path, tmp_path: Path) -> None:
    for number in range(3):
        await store_entry(client, entry_key(number))
    before = [await client.hget(entry_key(number), "body") for number in range(3)]
    out = tmp_path / "entries.jsonl"
    assert (await cache(file, "export", out, "--json")).json() == {"entries": 3, "left_out": 0}
    assert oct(out.stat().st_mode & 0o777) == "0o600"
    await client.flushall()
    assert (await cache(file, "import", out, "--json")).json() == {"stored": 3, "expired": 0, "older": 0}
    assert [await client.hget(entry_key(number), "body") for number in range(3)] == before
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


async def test_a_device_is_written_to_and_not_replaced(client: Any, file: Path) -> None:
    await store_entry(client, entry_key())
    await cache(file, "export", "/dev/null")
    assert Path("/dev/null").is_char_device()


async def test_entries_can_be_piped(client: Any, file: Path) -> None:
    await store_entry(client, entry_key())
    lines = await run_cli_process("cache", "export", "--tenant", "acme", "--config", file)
    assert [line["key"] for line in lines.json_lines()] == [entry_key()]
    assert lines.stderr == "exported 1 entry\n"
    await client.flushall()
    imported = await run_cli_process("cache", "import", "--config", file, stdin=lines.stdout.encode())
    assert imported.stderr == "imported 1 entry\n"
    assert await client.exists(entry_key())


async def test_an_invalid_file_is_refused_with_the_number_of_its_line(client: Any, file: Path) -> None:
    result = await run_cli("cache", "import", "--config", file, stdin=b"\nnonsense\n")
    fails_with_one_line(result, 1, "line 2")
    old = {name.decode(): value.decode() for name, value in redis_fields_format_1(make_streamed_entry()).items()}
    line = json.dumps({"key": entry_key(), "expires": 9e9, "fields": old}).encode()
    fails_with_one_line(
        await run_cli("cache", "import", "--config", file, stdin=line), 1,
        "line 1: written in format 1; this router reads format 2",
    )  # fmt: skip
    fails_with_one_line(await run_cli("cache", "import", "nowhere", "--config", file), 2, "nowhere")
    fails_with_one_line(await run_cli("cache", "export", "/nowhere/x", "--config", file), 1, "/nowhere/x")


async def test_at_a_terminal_long_work_shows_its_progress(client: Any, file: Path, tmp_path: Path) -> None:
    for number in range(60):
        await store_entry(client, entry_key(number))
    result = await run_cli_in_terminal("cache", "export", tmp_path / "x", "--config", file)
    assert result.code == 0
    assert "entries exported" in result.stderr


# -- errors -----------------------------------------------------------------------------------------------------------


COMMANDS = [
    ["stats"],
    ["ls"],
    ["grep", "x"],
    ["show", entry_key()],
    ["top"],
    ["purge", "--all"],
    ["export"],
    ["import"],
    ["explain"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
async def test_without_redis_a_command_fails_with_one_line(tmp_path: Path, command: list[str]) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text(router_config("redis://:secret@127.0.0.1:1/0", ENGINES))
    result = await run_cli("cache", *command, "--config", file, stdin=json.dumps(chat_body("Hi")).encode())
    fails_with_one_line(result, 1, "Redis does not answer")
    assert "secret" not in result.stderr


async def test_where_embedded_redis_is_not_running_the_error_names_the_command_that_starts_it(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    text = router_config("embedded", ENGINES).replace("[router]", f'[router]\nstate = "{tmp_path}"')
    file.write_text(text)
    fails_with_one_line(await run_cli("cache", "ls", "--config", file), 1, "`roundhouse up` starts")


async def test_an_address_that_redis_py_cannot_use_fails_with_one_line(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text(router_config("redis://127.0.0.1:1/0?foo=bar", ENGINES))
    fails_with_one_line(await run_cli("cache", "stats", "--config", file), 2, "cache.url")


async def test_an_invalid_configuration_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    fails_with_one_line(await run_cli("cache", "stats", "--config", file), 2, str(file))
    file.write_text("nonsense")
    fails_with_one_line(await run_cli("cache", "stats", "--config", file), 2, "not valid TOML")


async def test_a_redis_that_refuses_a_command_is_not_said_to_be_silent(own_redis: RedisServer, tmp_path: Path) -> None:
    await own_redis.start()
    await own_redis.command("ACL", "SETUSER", "default", "-scan")
    path = tmp_path / "roundhouse.toml"
    path.write_text(router_config(own_redis.url, ENGINES))
    result = await run_cli("cache", "ls", "--config", path)
    fails_with_one_line(result, 1, "Redis refuses a command: ", "scan", "`roundhouse check`")
