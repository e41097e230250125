"""The guard for the cost of a request: which change of a figure is an error."""

import pytest

from benchmarks.costs import FIGURES, Comparison, read_figures
from benchmarks.request_paths import PATHS


@pytest.mark.parametrize(
    ("counted", "scale", "is_dearer"),
    [(1.019, 1.0, False), (1.021, 1.0, True), (0.5, 1.0, False), (1.1, 1.1, False), (1.1, 0.9, True)],
)
def test_a_path_is_dearer_if_it_takes_over_two_per_cent_more_than_its_figure(
    counted: float, scale: float, is_dearer: bool
) -> None:
    assert Comparison("miss", 1.0, counted, scale).is_dearer is is_dearer


@pytest.mark.parametrize("why", ["", 'why = ""', 'why = " "'])
def test_a_figure_says_why_it_is_as_high_as_it_is(why: str) -> None:
    with pytest.raises(ValueError, match="no `why`"):
        read_figures(f'yardstick = 1.0\n[[figure]]\npath = "a"\nmillion = 1.0\n{why}')


def test_the_figures_are_those_of_paths_that_exist() -> None:
    figures = read_figures(FIGURES.read_text(encoding="utf-8"))
    assert figures.paths.keys() <= {path.name for path in PATHS}
    assert len(figures.paths) == 4
