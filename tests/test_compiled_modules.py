"""The modules that setup.py compiles contain nothing that mypyc treats differently from Python."""

import ast
import importlib
import importlib.util
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.offenders import assert_none
from tests.support.paths import ROOT

SETUP: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "setup.py"))
PATHS: Final[list[str]] = SETUP["module_paths"]()
EXPECT_COMPILED: Final = "ROUNDHOUSE_TESTS_COMPILED" in os.environ  # set by make test-compiled


def module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """The nodes of these kinds in the modules that are compiled, each with its file and line."""
    for path in PATHS:
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, kinds):
                yield f"{path}:{getattr(node, 'lineno', 0)}", node


def test_make_test_interpreted_has_the_unit_tests_of_all_folders_with_compiled_modules() -> None:
    folders = sorted({path.split("/")[1] for path in PATHS})
    assert f"\nCOMPILED_FOLDERS := {' '.join(folders)}\n" in (ROOT / "Makefile").read_text()


def test_a_compiled_module_makes_no_class_whose_base_reads_its_body_or_its_options() -> None:
    """mypyc drops a class' options, such as msgspec's `frozen`, and reports annotations without their parameters."""
    readers = {"msgspec.Struct", "NamedTuple", "TypedDict"}
    assert_none(
        f"{place}: {node.name}"
        for place, node in nodes(ast.ClassDef)
        if node.keywords or readers & {ast.unparse(base) for base in node.bases}
    )


def test_a_compiled_module_does_not_wait_while_it_handles_an_exception() -> None:
    """mypyc restores the thread's exception, not the coroutine's: others that fail meanwhile leave theirs set for ever.

    Then `raise` and `finally` continue with the wrong exception, or with None, which corrupts memory.
    """
    waits = (ast.Await, ast.AsyncWith, ast.AsyncFor, ast.Yield, ast.YieldFrom)
    end_without_waiting = ("asyncio.timeout(", "asyncio.timeout_at(")

    def waits_while_handling(node: ast.Try | ast.AsyncWith) -> bool:
        if isinstance(node, ast.AsyncWith):
            return not all(ast.unparse(item).startswith(end_without_waiting) for item in node.items)
        return any(isinstance(each, waits) for last in [*node.handlers, *node.finalbody] for each in ast.walk(last))

    assert_none(place for place, node in nodes(ast.Try, ast.AsyncWith) if waits_while_handling(node))


def test_a_compiled_class_has_no_base_whose_instances_have_a_dict() -> None:
    """Since Python 3.11, such a dict is stored before the object, unexpected by mypyc: the process would crash."""
    compiled = {module_name(path) for path in PATHS}

    def has_such_a_base(kind: type) -> bool:
        return any(base.__dictoffset__ for base in kind.__mro__[1:] if base.__module__ not in compiled)

    assert_none(
        f"{path}: {found.__name__}"
        for path in PATHS
        for found in vars(importlib.import_module(module_name(path))).values()
        if isinstance(found, type) and found.__module__ == module_name(path)
        if not issubclass(found, BaseException) and has_such_a_base(found)
    )


def test_a_compiled_function_gives_no_two_exception_types_one_name() -> None:
    """mypyc gives a name in a function one type, and rejects an exception of the second type."""

    def kinds(function: ast.AST) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                found.setdefault(node.name, set()).add(ast.unparse(node.type))
        return found

    assert_none(
        f"{place}: {name} in {function.name}: {sorted(types)}"
        for place, function in nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        for name, types in kinds(function).items()
        if len(types) > 1
    )


def test_a_compiled_module_does_not_rely_on_raise_from() -> None:
    """mypyc ignores the cause of an exception; `from None` only shortens the traceback."""
    assert_none(
        f"{place}: {ast.unparse(node)}"
        for place, node in nodes(ast.Raise)
        if node.cause is not None and ast.unparse(node.cause) != "None"
    )


def test_a_compiled_module_has_no_async_generators() -> None:
    assert_none(
        f"{place}: {function.name}"
        for place, function in nodes(ast.AsyncFunctionDef)
        if any(isinstance(node, ast.Yield) for node in ast.walk(function))
    )


def test_a_compiled_module_has_no_constant_tuple_that_begins_with_a_float() -> None:
    """mypyc 2.4 takes such a `Final` of a known length for one that was not set: its first use raises NameError."""

    def begins_with_float(value: ast.AST | None) -> bool:
        if not isinstance(value, ast.Tuple) or any(isinstance(item, ast.Starred) for item in value.elts):
            return False
        first = next(iter(value.elts), None)
        number = first.operand if isinstance(first, ast.UnaryOp) else first
        return isinstance(number, ast.Constant) and isinstance(number.value, float)

    assert_none(place for place, node in nodes(ast.AnnAssign) if begins_with_float(node.value))


@pytest.mark.skipif(not EXPECT_COMPILED, reason="for make test-compiled")
def test_the_listed_modules_are_compiled() -> None:
    def is_compiled(path: str) -> bool:
        found = importlib.util.find_spec(module_name(path))
        file = Path(found.origin) if found is not None and found.origin is not None else Path()
        return file.suffix == ".so" and file.is_relative_to(ROOT)

    assert PATHS
    assert_none(path for path in PATHS if not is_compiled(path))


def test_the_version_shows_whether_it_is_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "router", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.rstrip().endswith(" (compiled)") is EXPECT_COMPILED


@pytest.mark.parametrize(
    ("setting", "command", "compiles"),
    [
        ("1", "bdist_wheel", True),
        ("0", "bdist_wheel", False),
        ("1", "editable_wheel", False),
        ("", "editable_wheel", False),
    ],
)
def test_an_install_compiles_as_requested_and_an_editable_one_never(setting: str, command: str, compiles: bool) -> None:
    assert SETUP["should_compile"](setting, ["setup.py", command]) is compiles


def test_by_default_it_compiles_if_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert not SETUP["should_compile"]("", ["setup.py", "bdist_wheel"])


def test_another_value_is_refused() -> None:
    with pytest.raises(SystemExit, match="ROUNDHOUSE_COMPILE is 0 or 1, not 'yes'"):
        SETUP["should_compile"]("yes", [])
