"""Decisions are pure, packages know only those below them, and no module has a state of its own.

`make lint` tests the layers within the router: the contracts in pyproject.toml.
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.offenders import assert_none
from tests.support.paths import ROOT

ROUTER: Final = sorted((ROOT / "router").rglob("*.py"))
ENGINES: Final = sorted((ROOT / "engines").rglob("*.py"))
CORE: Final = sorted((ROOT / "router" / "core").rglob("*.py"))

FOR_ENGINES: Final = ("router.core", "router.shared", "router.errors")
"""The packages of the router that `engines` may import; otherwise the two communicate over HTTP and Redis."""

WORLD: Final = {
    "anyio", "asyncio", "datetime", "http", "httpx", "multiprocessing", "os", "random", "redis", "secrets", "select",
    "signal", "socket", "ssl", "starlette", "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
    "uvicorn", "uvloop", "websockets",
}  # fmt: skip
"""Clocks, sockets, randomness, processes: the core gets their values as arguments."""

MUTABLE: Final = {
    "list", "dict", "set", "bytearray", "defaultdict", "OrderedDict", "Counter", "deque", "ChainMap",
    "WeakKeyDictionary", "WeakValueDictionary", "WeakSet",
}  # fmt: skip


Found = Iterator[tuple[int, str]]
"""Line numbers, with what is found there."""


def find(paths: list[Path], search: Callable[[ast.Module], Found]) -> Iterator[str]:
    """What is found in each module, with its file and line."""
    assert paths
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from (f"{path.relative_to(ROOT)}:{line}: {found}" for line, found in search(tree))


def find_imports(paths: list[Path], is_offender: Callable[[str], bool]) -> Iterator[str]:
    return find(paths, lambda tree: ((line, name) for line, name in imports_of(tree) if is_offender(name)))


def imports_of(tree: ast.Module) -> Found:
    """The modules that a module imports anywhere, by their full names; those of `from x import y` as x and as x.y."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield node.lineno, module
            yield from ((node.lineno, f"{module.rstrip('.')}.{alias.name}") for alias in node.names)


def is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_imports_are_absolute() -> None:
    assert_none(find_imports(ROUTER + ENGINES, lambda name: name.startswith(".")))


def test_the_router_never_imports_the_engines() -> None:
    assert_none(find_imports(ROUTER, lambda name: is_below(name, ("engines", "tests"))))


def test_the_engines_use_no_more_of_the_router_than_its_core() -> None:
    # `from router import errors` is listed as `router` and as `router.errors`.
    assert_none(find_imports(ENGINES, lambda name: name.startswith("router.") and not is_below(name, FOR_ENGINES)))


def test_the_core_uses_no_clock_and_no_socket() -> None:
    assert_none(find_imports(CORE, lambda name: is_below(name, tuple(WORLD))))


def test_the_core_awaits_nothing() -> None:
    waits = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    assert_none(find(CORE, lambda tree: ((node.lineno, "async") for node in ast.walk(tree) if isinstance(node, waits))))


def test_the_core_imports_only_itself_and_the_errors_of_the_router() -> None:
    own = ("router.core", "router.errors")
    assert_none(find_imports(CORE, lambda name: is_below(name, ("router",)) and not is_below(name, own)))


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported, without those of its classes."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from top_level(getattr(node, part, []))


def is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    if isinstance(value, ast.Call):
        called = value.func
        return (called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")) in MUTABLE
    return False


def states_of(tree: ast.Module) -> Found:
    """The mutable values at the top level of a module that are not declared or named as constants."""
    for node in top_level(tree.body):
        if isinstance(node, ast.AnnAssign) and is_mutable(node.value):
            if "Final" not in ast.unparse(node.annotation) and not ast.unparse(node.target).isupper():
                yield node.lineno, ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and is_mutable(node.value):
            names = [ast.unparse(target) for target in node.targets]
            yield from ((node.lineno, name) for name in names if not name.isupper() and name != "__all__")
    # A `global` statement changes the module, whatever the name.
    globals_ = (node for node in ast.walk(tree) if isinstance(node, ast.Global))
    yield from ((node.lineno, f"global {', '.join(node.names)}") for node in globals_)


def test_no_module_has_mutable_state() -> None:
    assert_none(find(ROUTER + ENGINES, states_of))


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("cache = {}", ["cache"]),
        ("cache: dict[str, int] = {}", ["cache"]),
        ("seen = set()", ["seen"]),
        ("if x:\n    seen = []", ["seen"]),
        ("try:\n    pass\nfinally:\n    seen = [1]", ["seen"]),
        ("a = b = collections.deque()", ["a", "b"]),
        ("def f():\n    global n\n    n = 1", ["global n"]),
        ("_NAMES = []\nNAMES: Final = {}\nnames: Final = {}\nn = 1\nt = ()\nf = frozenset()", []),
        ("def f():\n    x = []\nclass C:\n    y = {}", []),
    ],
)
def test_mutable_state_of_a_module_is_found(code: str, found: list[str]) -> None:
    assert [name for _, name in states_of(ast.parse(code))] == found
