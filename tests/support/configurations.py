"""Configurations, good and bad, for the tests of the settings."""

from typing import Final

import pytest

from router.settings import ConfigurationError, Settings, parse

MODEL: Final = '[[model]]\nname = "llama"\n'
ENGINE: Final = '[[engine]]\nname = "one"\nmodel = "llama"\nurl = "http://127.0.0.1:8001"\n'
MINIMAL: Final = MODEL + ENGINE
"""A configuration that is complete; tables can be put before it."""

HASH: Final = "sha256:" + "0123456789abcdef" * 4
OTHER_HASH: Final = "sha256:" + "f" * 64


def parse_config(text: str, **environment: str) -> Settings:
    return parse(text, environment)


def mistakes(text: str, **environment: str) -> tuple[str, ...]:
    """What is said of a configuration that cannot be used."""
    with pytest.raises(ConfigurationError) as caught:
        parse(text, environment)
    found = caught.value.mistakes
    assert str(caught.value).splitlines() == list(found)
    assert found
    return found


def config_error(text: str, **environment: str) -> str:
    """What is said of a configuration in which one thing is wrong."""
    (found,) = mistakes(text, **environment)
    return found
