"""Measures the shape of the code: how long and how branched functions are, what modules import, what folders hold."""

import ast
import io
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

FACTS: Final = ("Exchange", "GenerationRecord")
"""The classes that note what happened to a request."""

Function = ast.FunctionDef | ast.AsyncFunctionDef

_BRANCHES: Final = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)


class Figure(NamedTuple):
    """`name` of what is measured: a function as `path:Class.method`, a module or a folder by its path."""

    value: int
    name: str


class Shape(NamedTuple):
    """Figures of each function, module and folder, the largest first, and sums over all files.

    - `branches`: each `if`, loop, `except`, `case`, and each operand of `and` or `or` after the first, nested functions
      included. `lines`: of a function, without its docstring. `arguments`: without `self`.
    - `imports`: modules of the project that a module imports. `files`: of a folder.
    - `facts`: the fields of FACTS.
    """

    branches: Sequence[Figure]
    lines: Sequence[Figure]
    arguments: Sequence[Figure]
    imports: Sequence[Figure]
    files: Sequence[Figure]
    facts: int
    loose_files: int
    functions: int
    functions_with_docstring: int
    code_lines: int
    comment_lines: int
    total_lines: int


class _Source(NamedTuple):
    path: str
    text: str
    tree: ast.Module


def measure(root: Path, packages: Sequence[str]) -> Shape:
    """`packages`: the folders below `root` that are measured. Raises SyntaxError."""
    sources = [_read(root, path) for package in packages for path in sorted((root / package).rglob("*.py"))]
    functions = [each for source in sources for each in _functions(source)]
    nodes = [node for _, node in functions]
    comments, code = map(sum, zip(*(_count_lines(source.text) for source in sources), strict=True))
    return Shape(
        branches=_sorted(Figure(count_branches(node), name) for name, node in functions),
        lines=_sorted(Figure(count_lines(node), name) for name, node in functions),
        arguments=_sorted(Figure(count_arguments(node), name) for name, node in functions),
        imports=_sorted(Figure(count_imports(source.tree, packages), source.path) for source in sources),
        files=_sorted(_files_by_folder(sources)),
        facts=sum(_count_fields(source.tree) for source in sources),
        loose_files=sum(source.path.count("/") == 1 for source in sources if source.path.startswith("router/")),
        functions=len(nodes),
        functions_with_docstring=sum(ast.get_docstring(node, clean=False) is not None for node in nodes),
        code_lines=code,
        comment_lines=comments,
        total_lines=sum(source.text.count("\n") for source in sources),
    )


def _read(root: Path, path: Path) -> _Source:
    text = path.read_text()
    return _Source(path.relative_to(root).as_posix(), text, ast.parse(text, path))


def _sorted(figures: Iterable[Figure]) -> Sequence[Figure]:
    return sorted(figures, key=lambda figure: (-figure.value, figure.name))


def _functions(source: _Source) -> Iterator[tuple[str, Function]]:
    """Functions and methods, not those within a function, with their names."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield f"{source.path}:{prefix}{child.name}", child
            else:
                yield from visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    return visit(source.tree, "")


def count_branches(function: Function) -> int:
    count = 0
    for node in ast.walk(function):
        count += isinstance(node, _BRANCHES)
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            count += len(node.ifs)
    return count


def count_lines(function: Function) -> int:
    docstring = function.body[0] if ast.get_docstring(function, clean=False) is not None else None
    length = (function.end_lineno or 0) - function.lineno + 1
    return length - ((docstring.end_lineno or 0) - docstring.lineno + 1) if docstring is not None else length


def count_arguments(function: Function) -> int:
    of = function.args
    names = [argument.arg for argument in (*of.posonlyargs, *of.args, *of.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def count_imports(module: ast.Module, packages: Sequence[str]) -> int:
    imported = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            imported.add(node.module)
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    return sum(name.partition(".")[0] in packages for name in imported)


def _files_by_folder(sources: Sequence[_Source]) -> Iterator[Figure]:
    folders = [source.path.rpartition("/")[0] for source in sources if not source.path.endswith("__init__.py")]
    return (Figure(folders.count(folder), folder) for folder in set(folders))


def _count_fields(module: ast.Module) -> int:
    facts = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name in FACTS]
    return sum(isinstance(statement, ast.AnnAssign) for node in facts for statement in node.body)


def _count_lines(text: str) -> tuple[int, int]:
    """Lines that are only a comment, and lines with code."""
    comments, code = 0, set[int]()
    ignored = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            comments += 1
        elif token.type not in ignored:
            code.update(range(token.start[0], token.end[0] + 1))
    return comments, len(code)
