"""The shape of the code is measured as it is meant, and may only get better; see tools/shape."""

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from tools.shape.measures import (
    Figure,
    Function,
    Shape,
    count_arguments,
    count_branches,
    count_imports,
    count_lines,
    measure,
)
from tools.shape.ratchet import Limits, Measure, find_offences, lowered, read_limits, write_limits


def function(text: str) -> Function:
    (node,) = ast.parse(dedent(text)).body
    assert isinstance(node, Function)
    return node


@pytest.mark.parametrize(
    ("body", "branches"),
    [
        ("return a", 0),
        ("if a:\n  pass\nelif b:\n  pass\nelse:\n  pass", 2),
        ("return a if b else c", 1),
        ("return a and b and c or d", 3),
        ("for a in b:\n  while c:\n    pass", 2),
        ("try:\n  pass\nexcept A:\n  pass\nexcept B:\n  pass\nfinally:\n  pass", 2),
        ("match a:\n  case 1:\n    pass\n  case _:\n    pass", 2),
        ("return [a for a in b if a if c]", 2),
        ("with a:\n  def g():\n    if b:\n      pass", 1),
    ],
)
def test_each_way_through_a_function_is_a_branch(body: str, branches: int) -> None:
    lines = "\n".join(f"  {line}" for line in body.splitlines())
    assert count_branches(function(f"def f():\n{lines}")) == branches


def test_the_docstring_and_the_decorators_are_no_lines_of_a_function() -> None:
    text = '''
    @decorated
    def f(
        a,
    ):
        """One.

        Two.
        """
        return a
    '''
    assert count_lines(function(text)) == 4


@pytest.mark.parametrize(
    ("arguments", "count"), [("", 0), ("self", 0), ("self, a, *, b=1", 2), ("a, /, b, *c, **d", 2), ("cls, a", 1)]
)
def test_self_is_no_argument(arguments: str, count: int) -> None:
    assert count_arguments(function(f"def f({arguments}): pass")) == count


def test_only_modules_of_the_project_count_as_imports_and_each_once() -> None:
    module = ast.parse(
        "import os\nimport router.a\nfrom router.a import b, c\nfrom engines.d import e\nfrom x import y"
    )
    assert count_imports(module, ["router", "engines"]) == 2


def test_a_tree_is_measured(tmp_path: Path) -> None:
    (tmp_path / "router" / "flow").mkdir(parents=True)
    (tmp_path / "router" / "loose.py").write_text("# a comment\nx = 1  # none\n")
    (tmp_path / "router" / "__init__.py").write_text("")
    (tmp_path / "router" / "flow" / "facts.py").write_text(
        dedent('''
        class Exchange:
            """Facts."""
            a: int
            b: int = 1

            def f(self, x):
                """Doc."""
                return x or 1
        ''')
    )
    shape = measure(tmp_path, ["router"])
    assert shape.branches == [Figure(1, "router/flow/facts.py:Exchange.f")]
    assert sorted(shape.files) == [Figure(1, "router"), Figure(1, "router/flow")]
    assert (shape.facts, shape.loose_files, shape.functions, shape.functions_with_docstring) == (2, 2, 1, 1)
    assert (shape.comment_lines, shape.code_lines, shape.total_lines) == (1, 8, 11)


SHAPE = Shape(
    branches=[Figure(9, "a"), Figure(3, "b")], lines=[], arguments=[], imports=[], files=[],
    facts=5, loose_files=5, functions=10, functions_with_docstring=4, code_lines=1000, comment_lines=20, total_lines=0,
)  # fmt: skip


def limits(known: dict[str, int], **others: int) -> Limits:
    none = Measure(100)
    totals = {"facts": 5, "loose_files": 5, "docstrings": 40, "comments": 20} | others
    return Limits(branches=Measure(4, known), lines=none, arguments=none, imports=none, files=none, **totals)


@pytest.mark.parametrize(
    ("allowed", "offence"),
    [
        (limits({}), "a: 9 branches of a function, at most 4"),
        (limits({"a": 8}), "a: 9 branches of a function, at most 8"),
        (limits({"a": 10}), "a: branches of a function got better than 10: run `python -m tools.shape --lower`"),
        (
            limits({"a": 9, "b": 5}),
            "b: branches of a function got better than 5: run `python -m tools.shape --lower`",
        ),
        (limits({"a": 9}, facts=4), "5 fields of the facts about a request and a generation, at most 4"),
        (limits({"a": 9}, loose_files=4), "5 modules directly in router/, at most 4"),
        (limits({"a": 9}, docstrings=39), "40 of a hundred functions have a docstring, at most 39"),
        (
            limits({"a": 9}, comments=21),
            "21 comment lines in a thousand lines of code, at least; there are 20",
        ),
    ],
)
def test_what_is_worse_than_its_limit_and_what_got_better_is_an_offence(allowed: Limits, offence: str) -> None:
    assert list(find_offences(SHAPE, allowed)) == [offence]


def test_a_figure_at_its_limit_is_none() -> None:
    assert not list(find_offences(SHAPE, limits({"a": 9})))


def test_limits_are_lowered_and_never_raised(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    write_limits(lowered(SHAPE, limits({"a": 12, "b": 5, "gone": 7}, facts=9)), file)
    assert read_limits(file) == limits({"a": 9}, facts=5)
    write_limits(lowered(SHAPE, limits({"a": 8}, facts=3)), file)
    assert read_limits(file) == limits({"a": 8}, facts=3)
