"""The shares and revisions of engines in the configuration."""

import pytest

from tests.support.configurations import MODEL, config_error, parse_config


def engines(*settings: str) -> str:
    tables = (
        f'[[engine]]\nname = "e{n}"\nmodel = "llama"\nurl = "http://h:{n + 1}"\n{more}\n'
        for n, more in enumerate(settings)
    )
    return MODEL + "".join(tables)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["share = 101", ""], "engine[0].share: 101 is not an integer from 0 to 100"),
        (["share = -1", ""], "engine[0].share: -1 is not an integer from 0 to 100"),
        (["share = 60", "", "share = 50"],
         "engine[2].share: 50 is too much: the shares of llama's engines add up to 110; 100 is all"),
        (["share = 60", "share = 30"],
         "engine[1].share: 30 leaves 10 to nobody; leave out the share of an engine that takes the rest"),
        (["", 'revision = "2"'],
         "engine[1].revision: '2' needs share: the engine must be chosen before the cache key is made"),
    ],
)  # fmt: skip
def test_shares_that_cannot_be_given_are_mistakes(settings: list[str], message: str) -> None:
    assert config_error(engines(*settings)) == message


@pytest.mark.parametrize(
    "settings",
    [["share = 10", ""], ["share = 100"], ["share = 40", "share = 60"], ["share = 0", ""], ["share = 100", ""]],
)
def test_shares_leave_the_rest_to_engines_without_one(settings: list[str]) -> None:
    assert len(parse_config(engines(*settings)).engine) == len(settings)
