"""Markdown tables in the documentation are well-formed: GitHub renders every row of them as a row."""

import re
from collections.abc import Iterator

import pytest

from tests.support.offenders import assert_none
from tests.support.paths import PAGES, ROOT

FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CELL_END = re.compile(r"(?<!\\)\|")
DELIMITER_CELL = re.compile(r"\s*:?-+:?\s*")

Table = list[tuple[int, str]]


def tables(text: str) -> Iterator[Table]:
    """Each run of lines that begin with `|`, as line numbers and lines; code blocks are skipped."""
    without_code = FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)
    table: Table = []
    for number, line in enumerate([*without_code.splitlines(), ""], start=1):
        if line.startswith("|"):
            table.append((number, line))
        elif table:
            yield table
            table = []


def cells(line: str) -> list[str]:
    """The cells of a row. A `|` inside of code must be escaped as well (GFM, section 4.10)."""
    return CELL_END.split(line.strip())[1:-1]


def problems(text: str) -> list[str]:
    """The defects of the tables of a page, by line."""
    found = []
    for table in tables(text):
        first = table[0][0]
        if len(table) < 2 or not all(DELIMITER_CELL.fullmatch(cell) for cell in cells(table[1][1])):
            found.append(f"line {first}: no delimiter row; a blank line above it ends the table")
            continue
        columns = len(cells(table[0][1]))
        found += [
            f"line {number}: {len(cells(line))} cells in a table of {columns} columns"
            for number, line in table
            if len(cells(line)) != columns or not line.rstrip().endswith("|")
        ]
    return found


def test_every_table_of_a_page_is_well_formed() -> None:
    assert_none(
        f"{page.relative_to(ROOT)}: {problem}"
        for page in PAGES
        for problem in problems(page.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("| a | b |\n| - | - |\n| 1 | 2 |\n\n| 3 | 4 |\n", "line 5: no delimiter row"),
        ("| a | b |\n| - | - |\n| 1 |\n", "line 3: 1 cells in a table of 2 columns"),
        ("| a |\n| - |\n| `x|y` |\n", "line 3: 2 cells in a table of 1 columns"),
    ],
)
def test_a_broken_table_is_found(text: str, problem: str) -> None:
    assert [found.startswith(problem) for found in problems(text)] == [True]


def test_tables_in_code_blocks_are_not_tables() -> None:
    assert problems("```\n| a |\n\n| b |\n```\n") == []
