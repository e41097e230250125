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

from tests.support.paths import ROOT

SETUP: Final[dict[str, Any]] = runpy.run_path(str(ROOT / "setup.py"))
PATHS: Final[list[str]] = SETUP["module_paths"]()
EXPECT_COMPILED: Final = "ROUNDHOUSE_TESTS_COMPILED" in os.environ  # set by make test-compiled


def module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def nodes(path: str, *kinds: type[ast.AST]) -> Iterator[Any]:
    return (node for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, kinds))


@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_module_makes_no_class_whose_base_reads_its_body_or_its_options(path: str) -> None:
    """mypyc drops a class' options, such as msgspec's `frozen`, and reports annotations without their parameters."""
    for node in nodes(path, ast.ClassDef):
        assert not node.keywords, f"{node.name} has options"
        assert not {"msgspec.Struct", "NamedTuple", "TypedDict"} & {ast.unparse(base) for base in node.bases}, node.name


@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_module_names_the_exception_that_it_raises_again_after_an_await(path: str) -> None:
    """mypyc can lose it otherwise: then `raise` sets None as the exception, which corrupts memory."""
    for handler in nodes(path, ast.ExceptHandler):
        inside = [node for statement in handler.body for node in ast.walk(statement)]
        waits = [node.lineno for node in inside if isinstance(node, ast.Await | ast.AsyncWith | ast.AsyncFor)]
        raises = [node.lineno for node in inside if isinstance(node, ast.Raise) and node.exc is None]
        assert not waits or all(line < min(waits) for line in raises), f"line {handler.lineno}"


@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_class_has_no_base_whose_instances_have_a_dict(path: str) -> None:
    """Since Python 3.11, such a dict is stored before the object, unexpected by mypyc: the process would crash."""
    module = importlib.import_module(module_name(path))
    for found in vars(module).values():
        if isinstance(found, type) and found.__module__ == module.__name__ and not issubclass(found, BaseException):
            bases = [base for base in found.__mro__[1:] if base.__module__ not in map(module_name, PATHS)]
            assert not any(base.__dictoffset__ for base in bases), found


@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_function_gives_no_two_exception_types_one_name(path: str) -> None:
    """mypyc gives a name in a function one type, and rejects an exception of the second type."""
    for function in nodes(path, ast.FunctionDef, ast.AsyncFunctionDef):
        kinds: dict[str, set[str]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                kinds.setdefault(node.name, set()).add(ast.unparse(node.type))
        assert all(len(found) == 1 for found in kinds.values()), f"{function.name}: {kinds}"


@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_module_does_not_rely_on_raise_from(path: str) -> None:
    """mypyc ignores the cause of an exception; `from None` only shortens the traceback."""
    for node in nodes(path, ast.Raise):
        assert node.cause is None or ast.unparse(node.cause) == "None", ast.unparse(node)


@pytest.mark.parametrize("path", PATHS)
def test_a_compiled_module_has_no_async_generators(path: str) -> None:
    for function in nodes(path, ast.AsyncFunctionDef):
        assert not any(isinstance(node, ast.Yield) for node in ast.walk(function)), function.name


@pytest.mark.skipif(not EXPECT_COMPILED, reason="for make test-compiled")
@pytest.mark.parametrize("path", PATHS)
def test_the_listed_modules_are_compiled(path: str) -> None:
    found = importlib.util.find_spec(module_name(path))
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).suffix == ".so"
    assert Path(found.origin).is_relative_to(ROOT)


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
