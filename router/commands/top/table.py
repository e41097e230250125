"""Tables that fit: columns and rows for which there is no room are left out, the least important first."""

from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from router.telemetry.log_output import one_line

_GAP: Final = 2  # cells between two columns

RowT = TypeVar("RowT")


class Column(NamedTuple, Generic[RowT]):
    """`rank`: columns with the highest are left out first. `style`: of a value, as rich names it."""

    title: str
    value: Callable[[RowT], str]
    rank: int = 0
    style: Callable[[RowT], str] = lambda _: ""
    right: bool = False
    max_width: int = 30


def build_table(columns: Sequence[Column[RowT]], rows: Sequence[RowT], width: int, max_rows: int | None) -> Table:
    """At most `max_rows` lines below the titles; the last then says how many rows are left out, unless it is the only
    one. None: all rows.
    """
    shown = rows if max_rows is None or len(rows) <= max_rows else rows[: max(1, max_rows - 1)]
    left_out = f"… {len(rows) - len(shown)} more" if len(shown) < len(rows) and max_rows != 1 else ""
    filled = [
        _FilledColumn(column, [_clip(column.value(row), column.max_width) for row in shown]) for column in columns
    ]
    filled[0].cells.append(left_out)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", collapse_padding=True)
    fitting = _fit(filled, width)
    for column, _ in fitting:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=True, overflow="ellipsis")
    for number, row in enumerate(shown):
        table.add_row(*[Text(cells[number], style=column.style(row)) for column, cells in fitting])
    if left_out:
        table.add_row(Text(left_out, style="dim"))
    return table


class _FilledColumn(NamedTuple, Generic[RowT]):
    column: Column[RowT]
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(cell_len, [self.column.title, *self.cells]))


def _fit(columns: Sequence[_FilledColumn[RowT]], width: int) -> list[_FilledColumn[RowT]]:
    fitting = list(columns)
    while len(fitting) > 1 and sum(filled.width + _GAP for filled in fitting) - _GAP > width:
        # Of equal ranks, the last: the first column says what the row is.
        fitting.remove(max(reversed(fitting), key=lambda filled: filled.column.rank))
    return fitting


def _clip(text: str, max_width: int) -> str:
    text = one_line(text)
    return text if len(text) <= max_width else f"{text[: max_width - 1]}…"


def share_lines(available: int, wanted: Sequence[int]) -> list[int]:
    """Divides lines among tables: each gets what it wants or, if there are too few, a fair part, and at least 1."""
    shares = [min(want, 1) for want in wanted]
    while sum(shares) < available:
        hungry = [index for index, want in enumerate(wanted) if shares[index] < want]
        if not hungry:
            break
        shares[min(hungry, key=shares.__getitem__)] += 1
    return shares
