"""What errors suggest for words that are no commands."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from router.cli import app
from router.commands.suggestions import CHANGING_OPTIONS, GROUPS, READ_ONLY, suggest
from tests.support.cli_helpers import run_cli

PROGRAM: Any = typer.main.get_command(app)


def groups(command: Any = PROGRAM, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, sub in command.commands.items():
        if hasattr(sub, "commands"):
            yield from groups(sub, f"{path} {name}".strip())


def mistyped(name: str) -> Iterator[str]:
    for position in range(len(name)):
        yield name[:position] + name[position + 1 :]
        yield name[:position] + "x" + name[position:]
    yield from (name + "s", name[::-1], name.upper())


async def error_of(*arguments: str) -> str:
    result = await run_cli(*arguments)
    assert (result.code, result.stdout) == (2, "")
    return result.stderr


def test_no_mistyped_word_suggests_a_command_that_changes_something() -> None:
    known = {f"{path} {name}".strip() for path, group in groups() for name in group.commands}
    assert known >= READ_ONLY | GROUPS
    words = {word for path in known for word in mistyped(path.rpartition(" ")[2])} | {"status", "stop", "start", "kill"}
    for path, group in groups():
        for word in words - set(group.commands):
            for name in re.findall("'([^']+)'", suggest(path, word, group.commands) or ""):
                assert f"{path} {name}".strip() in READ_ONLY | GROUPS, (path, word)


@pytest.mark.parametrize(
    ("group", "word", "expected"),
    [
        ("engines", "ps", "Did you mean 'list'?"),
        ("engines", "lst", "Did you mean 'list'?"),
        ("engines", "restrat", None),
        ("cache", "purg", None),
        ("cache", "sats", "Did you mean 'stats'?"),
        ("", "chekc", "Did you mean 'check'?"),
        ("", "stop", "`roundhouse serve` and `roundhouse up` stop with Ctrl-C or SIGTERM."),
        ("", "", None),
    ],
)
def test_a_suggestion_is_what_the_word_means_elsewhere_or_similar(group: str, word: str, expected: str | None) -> None:
    assert suggest(group, word, dict(groups())[group].commands) == expected


async def test_an_unknown_command_is_an_error_with_its_hint() -> None:
    assert "No such command 'ps'. Did you mean 'list'?" in await error_of("engines", "ps")


async def test_no_mistyped_option_suggests_one_that_changes_more() -> None:
    assert "--all" in CHANGING_OPTIONS
    error = await error_of("cache", "purge", "--al")
    assert "No such option: --al" in error
    assert "--all" not in error
