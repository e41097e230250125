"""A number and its noun."""

import pytest

from router.core.plural import pluralize


@pytest.mark.parametrize(
    ("count", "plural", "text"),
    [
        (0, None, "0 engines"), (1, None, "1 engine"), (2, None, "2 engines"), (1000, None, "1,000 engines"),
        (1, "x", "1 engine"), (2, "x", "2 x"),
    ],
)  # fmt: skip
def test_one_is_singular_and_everything_else_plural(count: int, plural: str | None, text: str) -> None:
    assert pluralize(count, "engine", plural) == text
