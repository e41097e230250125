"""Options that a command has as one argument."""

from typing import Annotated, NamedTuple

import typer
from typer.testing import CliRunner

from router.commands.batch.grouped_options import with_grouped_options


class Place(NamedTuple):
    host: Annotated[str, typer.Option()]
    port: Annotated[int, typer.Option(min=1)] = 80


def test_each_field_is_an_option_and_the_command_gets_them_as_one_argument() -> None:
    got = []

    def call(name: str, place: Place, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Calls."""
        got.append((name, place, loud))

    app = typer.Typer()
    app.command()(with_grouped_options(call))
    for arguments in (["me", "--host", "h"], ["me", "--host", "h", "--port", "8", "--loud"]):
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert got == [("me", Place("h", 80), False), ("me", Place("h", 8), True)]
    for wrong in (["me"], ["me", "--host", "h", "--port", "0"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
    assert "Calls." in CliRunner().invoke(app, ["--help"]).stdout
