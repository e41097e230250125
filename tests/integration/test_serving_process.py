"""The process that serves: it is not the one that reads the command line, and has none of its libraries."""

import subprocess
import sys

import pytest

from router.settings.serve_options import PROGRAM, ServeOptions, from_arguments, to_arguments

UNWANTED = ("typer", "rich", "pygments", "httpx", "pydantic", "router.cli", "router.commands")


def test_it_has_no_library_of_the_command_line() -> None:
    program = f"import sys, router.process.serve; print([name for name in {UNWANTED!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "options",
    [
        ServeOptions(),
        ServeOptions(config="/etc/my file=1.toml", port=9000, workers=2, host="::", no_drain=True),
        ServeOptions(
            engine=["http://a", "http://b?"], model=["x=y", "--z"], api_key_env="K", wait=1.5, redis="redis://h"
        ),
    ],
)
def test_the_options_survive_the_way_to_it(options: ServeOptions) -> None:
    assert from_arguments([*PROGRAM, *to_arguments(options)]) == options


def test_no_drain_is_a_setting_that_a_reload_applies_again() -> None:
    (override,) = ServeOptions(no_drain=True).overrides
    assert (override.place, override.value, override.origin) == (("router", "drain"), "0", "--no-drain")
    assert ServeOptions().overrides == []


def test_other_arguments_are_refused() -> None:
    for arguments in (["serve"], [*PROGRAM, "--port=x"]):
        with pytest.raises(ValueError, match=r"roundhouse serve|Expected"):
            from_arguments(arguments)
