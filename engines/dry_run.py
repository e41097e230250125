"""`roundhouse up --dry-run`: the commands that it would run, as a shell script or as JSON. Nothing is started."""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

import msgspec

from engines.launcher import Program, ProgramNotInstalledError, choose_program, engine_command
from engines.plan import UpPlan
from engines.redis_server import RedisNotInstalledError, find_program, redis_argv

MASK: Final = "***"

_SECRET_NAME: Final = re.compile(
    r"(?:^|[-_])(?:api[-_]?key|key|token|secret|password|passwd|credentials?)(?:$|[-_])", re.IGNORECASE
)
"""In names of options and environment variables; `--max-num-batched-tokens` and `--tokenizer` are not secret."""

_SECRET_VALUE: Final = re.compile(r"\b(?:hf_|sk-|rh-)[A-Za-z0-9_-]{8}|\bbearer\b|://[^/\s]*:[^/\s]*@", re.IGNORECASE)
"""Tokens of the Hugging Face hub, keys in the form of OpenAI's or of `roundhouse keys new`, passwords in addresses."""


class PlannedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process, with secrets masked. `env` is added to the environment of `roundhouse up`."""

    name: str
    description: str
    argv: list[str]
    env: dict[str, str]


def dry_run(plan: UpPlan, out: TextIO, err: TextIO, *, as_json: bool) -> int:
    """Writes the processes of the plan in the order in which they would start; returns the exit code."""
    program = _program(plan, err)
    for number, process in enumerate(planned_processes(plan, program)):
        if as_json:
            out.write(msgspec.json.encode(process).decode() + "\n")
        else:
            out.write(("\n" if number else "") + shell_lines(process))
    return 0


def planned_processes(plan: UpPlan, program: Program) -> Iterator[PlannedProcess]:
    if plan.redis_socket is not None:
        argv = redis_argv(_redis_server(), socket=Path(plan.redis_socket), folder=Path(plan.state))
        yield _masked("redis", "the private Redis", argv, {})
    for spec in plan.engines:
        if spec.launch is not None:
            command = engine_command(spec, program, plan)
            yield _masked(spec.name, command.description, command.argv, command.env)
    if plan.router is not None:
        # Without `env`: its file with a key is made by `up` itself, and the router would not start without it.
        yield _masked("router", f"serves on {plan.router.url}", plan.router.argv, {})


def shell_lines(process: PlannedProcess) -> str:
    """The command with its environment, quoted for a shell, an option a line.

    What is masked is read from a variable of the shell: `HF_TOKEN="$HF_TOKEN"`.
    """
    lines = [f"{name}={_shell_word(value, name)}" for name, value in process.env.items()]
    line: list[str] = []
    option = ""
    for word in process.argv:
        if word.startswith("--"):
            lines.append(" ".join(line))
            line, option = [], word
        line.append(_shell_word(word, option))
    script = " \\\n    ".join([*lines, " ".join(line)])
    description = " ".join(process.description.split())  # in one line, which a model's name could otherwise end
    return f"# {process.name}: {description}\n{script}\n"


def _masked(name: str, description: str, argv: Sequence[str], env: Mapping[str, str]) -> PlannedProcess:
    return PlannedProcess(
        name=name,
        description=description,
        argv=list(_mask_argv(argv)),
        env={key: MASK if _is_secret(key, value) else value for key, value in env.items()},
    )


def _mask_argv(argv: Sequence[str]) -> Iterator[str]:
    option = ""  # the one that the next words are values of
    for word in argv:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            yield MASK if _is_secret(option, word) else word
            continue
        option = "" if equals else word
        yield f"{name}={MASK}" if equals and _is_secret(name, value) else word


def _is_secret(name: str, value: str) -> bool:
    return _SECRET_NAME.search(name) is not None or _SECRET_VALUE.search(value) is not None


def _shell_word(word: str, name: str) -> str:
    """`name` is the variable or option that the word is the value of."""
    option, equals, value = word.partition("=")
    if equals and value == MASK and word.startswith("--"):
        return f"{option}={_shell_word(value, option)}"
    return f'"${_variable(name)}"' if word == MASK else shlex.quote(word)


def _variable(name: str) -> str:
    return re.sub(r"\W+", "_", name.strip("-")).upper() or "SECRET"


def _program(plan: UpPlan, err: TextIO) -> Program:
    """What `up` would run here; it need not be installed, since it may be elsewhere."""
    try:
        return choose_program(plan)
    except ProgramNotInstalledError as error:
        err.write(f"roundhouse: {error}\n")
        return "simulator" if plan.kind == "simulator" else "vllm"


def _redis_server() -> str:
    try:
        return find_program("redis-server")
    except RedisNotInstalledError:
        return "redis-server"


def main(plan: UpPlan, *, as_json: bool) -> int:
    return dry_run(plan, sys.stdout, sys.stderr, as_json=as_json)
