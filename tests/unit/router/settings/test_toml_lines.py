"""Where each table, setting and item of a TOML file stands."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.settings import ConfigurationError, load
from router.settings.mistakes import Place
from router.settings.toml_lines import find_lines, line_of
from tests.support.paths import ROOT

TEXT = '''\
# a comment = 1
[router]
port = 1            # 2 = [
"quo.ted \\u0041" = 1
'literal' = 2

[[engine]]
name = "[not] = a # heading"
launch.env = { A = "1", B = "2" }
long = """
[[engine]]
a = "1" \\"""
"""
[engine.deep . er]
x = 1979-05-27 07:32:00
[[engine]]
keys = [
  "one",  # with ] a bracket
  [ "two",
    "three" ],
]
[[engine.part]]
y = \'\'\'
\'\'\'\'\'
[[engine.part]]
y = 2
z = [ { p = 1 },
      { p = 2 } ]
'''


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Every place of a document that tomllib has read."""
    if place:
        yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from places(item, (*place, name))


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (("router",), 2),
        (("router", "port"), 3),
        (("router", "quo.ted A"), 4),
        (("router", "literal"), 5),
        (("engine", 0), 7),
        (("engine", 0, "name"), 8),
        (("engine", 0, "launch", "env", "B"), 9),
        (("engine", 0, "long"), 10),
        (("engine", 0, "deep", "er"), 14),
        (("engine", 0, "deep", "er", "x"), 15),
        (("engine", 1), 16),
        (("engine", 1, "keys", 1), 19),
        (("engine", 1, "keys", 1, 1), 20),
        (("engine", 1, "part", 0, "y"), 23),
        (("engine", 1, "part", 1), 25),
        (("engine", 1, "part", 1, "z", 1, "p"), 28),
    ],
)
def test_a_place_has_the_line_on_which_it_begins(place: Place, line: int) -> None:
    assert find_lines(TEXT)[place] == line


def test_every_place_of_a_document_has_a_line_and_nothing_else_does() -> None:
    assert set(find_lines(TEXT)) == set(places(tomllib.loads(TEXT)))


def test_so_it_is_in_all_configurations_of_this_repository() -> None:
    files = [path for path in ROOT.rglob("*.toml") if not path.relative_to(ROOT).parts[0].startswith(".")]
    assert len(files) > 5
    for file in files:
        text = file.read_text()
        assert set(find_lines(text)) == set(places(tomllib.loads(text))), file


SCALARS = st.one_of(
    st.integers().map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF, exclude_characters="\x7f"), max_size=8).map(
        lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    ),
    st.sampled_from(['"""\n]\n"""', "'''[a]\n#'''", "'[ # ='", '""', '""""""', '"""a""b"""""', "1e3", "2020-01-01"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: "[ # c ]\n" + ",\n".join(items) + "\n]"),
        st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{n} = {i}" for n, i in enumerate(items)) + "}"
        ),
    ),
    max_leaves=12,
)
SECTIONS = st.lists(
    st.tuples(
        st.sampled_from(["[a{n}]", "[[list]]", "[[list.deep]]", "# only [a] comment"]), st.lists(VALUES, max_size=3)
    ),
    max_size=6,
)


@given(SECTIONS)
def test_so_it_is_in_any_document(sections: list[tuple[str, list[str]]]) -> None:
    parts = []
    for number, (heading, values) in enumerate(sections):
        settings = [f"s{number}_{index} = {value}" for index, value in enumerate(values)]
        parts += [heading.format(n=number), *settings]
    text = "\n".join(parts)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # [[list]] after [[list.deep]]
        return
    assert set(find_lines(text)) == set(places(document))


def test_what_has_no_line_of_its_own_has_that_of_its_table() -> None:
    lines = find_lines(TEXT)
    assert line_of(lines, ("engine", 1, "url")) == 16
    assert line_of(lines, ("engine", None, "name")) == 7
    assert line_of(lines, ("model",)) is None


def test_each_mistake_names_its_line_or_the_variable_with_it(tmp_path: Path) -> None:
    file = tmp_path / "roundhouse.toml"
    engine = '[[engine]]\nname = "e"\nmodel = "none"'
    file.write_text(f'[router]\nport = "x"\n\n[[model]]\nname = "Llama"\n\n{engine}\n')
    with pytest.raises(ConfigurationError) as caught:
        load(file, {"ROUNDHOUSE_ROUTER_WORKERS": "x"})
    places = [mistake.split(": ")[:2] for mistake in caught.value.mistakes]
    assert sorted(place.removeprefix(str(file)) + " " + setting.split()[0] for place, setting in places) == [
        ":2 router.port", ":5 model[0].name", ":7 engine[0].url", ":9 engine[0].model",
        "ROUNDHOUSE_ROUTER_WORKERS router.workers",
    ]  # fmt: skip


@pytest.mark.parametrize(("text", "place"), [("a = 1\nb =\n", ":2"), ("a = [\n", ""), (f"a = {'1' * 5000}\n", "")])
def test_text_that_is_no_toml_names_its_line_if_it_is_known(tmp_path: Path, text: str, place: str) -> None:
    file = tmp_path / "roundhouse.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load(file, {})
    assert caught.value.mistakes[0].startswith(f"{file}{place}: not valid TOML: ")
