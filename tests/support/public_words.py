"""The words that users see and write down: a change of one breaks a dashboard, a script or a configuration.

`python -m tests.support.public_words` writes them to tests/data/public_words.txt.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from router import cli
from router.api.access.sessions import SESSION_COOKIE
from router.settings import Settings
from router.telemetry.metric_table import METRICS
from router.telemetry.traffic_counter import SAMPLES
from tests.support.paths import ROOT

FILE: Final = ROOT / "tests" / "data" / "public_words.txt"

_HEADER: Final = re.compile(r"x-[a-z-]+", re.IGNORECASE)
_KEY: Final = re.compile(r"^ +(rh:1:\S+)", re.MULTILINE)


def public_words() -> set[str]:
    """Each with its kind: `metric llm_requests_total`."""
    words = {*_settings(Settings, "setting "), *_commands(typer.main.get_command(cli.app), "command roundhouse")}
    for path in sorted((ROOT / "router").rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            words |= set(_words_of_node(node))
        if path.name in ("access_line.py", "request_times.py"):
            words |= set(_log_fields(tree))
    words |= {f"metric {name}" for name in _metrics()}
    errors = ast.parse((ROOT / "router" / "errors.py").read_text())
    words |= {f"error {value}" for value in _constants(errors)}
    keys = (ROOT / "router" / "core" / "cache" / "redis_keys.py").read_text()
    return words | {f"key {key}" for key in _KEY.findall(keys)}


def read_words() -> set[str]:
    return set(FILE.read_text().splitlines())


def _settings(table: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    for field in msgspec.structs.fields(table):
        yield f"{prefix}{field.encode_name}"
        for nested in _tables_in(field.type):
            yield from _settings(nested, f"{prefix}{field.encode_name}.")


def _tables_in(type_: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        yield type_
    for argument in getattr(type_, "__args__", ()):
        yield from _tables_in(argument)


def _commands(command: Any, name: str) -> Iterator[str]:
    """`command`: one of typer, which has a click of its own."""
    yield name
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            yield f"{name} {option}"
    for child in getattr(command, "commands", {}).values():
        yield from _commands(child, f"{name} {child.name}")


def _words_of_node(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.keyword) and node.arg == "code" and (code := _text(node.value)) is not None:
        yield f"error {code}"
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
        if _HEADER.fullmatch(text):
            yield f"header {text.lower()}"


def _log_fields(tree: ast.Module) -> Iterator[str]:
    """The first of each pair that is yielded or appended, and of each call of `_known`, which yields one."""
    yielded = [node.value for node in ast.walk(tree) if isinstance(node, ast.Yield)]
    firsts: list[ast.AST] = [value.elts[0] for value in yielded if isinstance(value, ast.Tuple)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    appended = [call.args[0] for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "append"]
    firsts += [value.elts[0] for value in appended if isinstance(value, ast.Tuple)]
    firsts += [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "_known"]
    return (f"log {name}" for first in firsts if (name := _text(first)) is not None)


def _metrics() -> Iterator[str]:
    """The families but those of what engines report (`vllm_`), and the samples that the status API counts."""
    yield from (row.family for row in METRICS.values() if row.family.startswith(("llm_", "roundhouse_")))
    yield from SAMPLES
    yield SESSION_COOKIE  # no metric, but the list has had it as one from the start


def _constants(tree: ast.Module) -> Iterator[str]:
    values = [_text(node.value) for node in tree.body if isinstance(node, ast.AnnAssign)]
    return (value for value in values if value is not None)


def _text(node: ast.AST | None) -> str | None:
    """The value of a constant string."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    target.write_text("".join(f"{word}\n" for word in sorted(public_words())))
