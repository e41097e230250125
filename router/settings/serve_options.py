"""The options of `roundhouse serve`, as the command line passes them on to the process that serves.

The command line is a program with large libraries, and this process replaces it (execv), so that it has none of them.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import msgspec

from router.settings import DEFAULT_PATH, Override
from router.settings.mistakes import Place

PROGRAM: Final = ("roundhouse", "serve")
"""The first arguments, which make the process recognisable in a list of processes."""

_OVERRIDES: Final[Mapping[str, Place]] = {
    "redis": ("cache", "url"),
    "host": ("router", "host"),
    "port": ("router", "port"),
    "workers": ("router", "workers"),
}


class ServeOptions(msgspec.Struct, frozen=True):
    """`engine` and what follows it up to `wait` are for a start without a file: then `config` is not read.

    - `model`: the engines' names of the models to serve; all, if empty. `api_key_env`: the environment variable with
      the engines' key. `wait`: for how many seconds the engines may be starting.
    - `redis`, `host`, `port`, `workers` and `no_drain` count more than the environment and the file.
    """

    config: str = DEFAULT_PATH
    engine: list[str] = []
    model: list[str] = []
    api_key_env: str | None = None
    wait: float = 600.0
    redis: str | None = None
    host: str | None = None
    port: int | None = None
    workers: int | None = None
    no_drain: bool = False

    @property
    def overrides(self) -> list[Override]:
        """A reload applies them again, so an option is never taken for a change of the file."""
        values = {name: getattr(self, name) for name in _OVERRIDES}
        overrides = [
            Override(_OVERRIDES[name], str(value), f"--{name}") for name, value in values.items() if value is not None
        ]
        return [*overrides, Override(("router", "drain"), "0", "--no-drain")] if self.no_drain else overrides


def exec_serve(options: ServeOptions) -> NoReturn:
    """Replaces this process by the one that serves."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "router.process.serve", *PROGRAM, *to_arguments(options)])  # noqa: S606


def to_arguments(options: ServeOptions) -> list[str]:
    """Each value as `--name=value`; what has its default is left out."""
    arguments = []
    for field in msgspec.structs.fields(ServeOptions):
        value = getattr(options, field.name)
        is_needed = not options.engine if field.name == "config" else value not in (field.default, [])
        if is_needed:
            values = value if isinstance(value, list) else [value]
            arguments += [f"--{field.name.replace('_', '-')}={item}" for item in values]
    return arguments


def from_arguments(arguments: Sequence[str]) -> ServeOptions:
    """The options in the arguments of `exec_serve`. Raises ValueError for any others."""
    if tuple(arguments[: len(PROGRAM)]) != PROGRAM:
        raise ValueError("this is the process of `roundhouse serve`; start that instead")
    values: dict[str, list[str]] = {}
    for argument in arguments[len(PROGRAM) :]:
        name, _, value = argument.removeprefix("--").partition("=")
        values.setdefault(name.replace("-", "_"), []).append(value)
    raw = {name: found if name in ("engine", "model") else found[0] for name, found in values.items()}
    return msgspec.convert(raw, ServeOptions, strict=False)  # ValidationError is a ValueError
