"""Help and shell completion of `roundhouse`."""

import os
import subprocess
import sys

import pytest

ROUNDHOUSE = [sys.executable, "-m", "router"]


@pytest.mark.parametrize("command", [[], ["serve"], ["engines"], ["engines", "drain"], ["cache", "purge"]])
def test_h_is_help_at_every_command(command: list[str]) -> None:
    short, long = (
        subprocess.run([*ROUNDHOUSE, *command, option], capture_output=True, text=True, check=True).stdout
        for option in ("-h", "--help")
    )
    assert short == long
    assert " ".join(["roundhouse", *command]) in short


def test_the_shell_completes_commands() -> None:
    env = {**os.environ, "_ROUNDHOUSE_COMPLETE": "complete_bash", "COMP_WORDS": "roundhouse re", "COMP_CWORD": "1"}
    done = subprocess.run(ROUNDHOUSE, capture_output=True, text=True, env=env, check=False)
    assert done.stdout.split() == ["reload"]
