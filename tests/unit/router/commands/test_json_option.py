"""One form for every `--json`: a line is an object. What it is for each command is in docs/operating.md."""

from collections.abc import Iterator
from typing import Any, Final, get_args

import typer

from router.cli import app
from router.commands.console import JsonLinesOption, JsonOption
from router.commands.suggestions import READ_ONLY
from tests.support.paths import ROOT

SECTION: Final = "\n## Output for programs\n"
TEXT_ONLY: Final = {"engines logs", "help", "keys hash"}
"""Commands that read, and whose result is a text as it stands elsewhere."""


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        where = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, where)
        else:
            yield where, command


def json_help(command: Any) -> str | None:
    return next((option.help for option in command.params if "--json" in option.opts), None)


HELP: Final = {path: json_help(command) for path, command in commands(typer.main.get_command(app))}


def test_every_command_that_reads_has_json() -> None:
    assert {path for path in READ_ONLY if HELP[path] is None} == TEXT_ONLY


def test_json_is_described_in_one_of_two_ways() -> None:
    forms = {get_args(option)[1].help for option in (JsonOption, JsonLinesOption)}
    assert {text for text in HELP.values() if text is not None} == forms


def test_the_documentation_names_the_commands_that_print_several_lines() -> None:
    lines_help = get_args(JsonLinesOption)[1].help
    section = (ROOT / "docs/operating.md").read_text().partition(SECTION)[2].partition("\n## ")[0]
    (listings,) = [line for line in section.splitlines() if line.startswith("| an object for each ")]
    assert {path for path, text in HELP.items() if text == lines_help} == {
        name for name in listings.split("`")[1::2] if name in HELP
    }
