"""Valid and invalid configurations for the tests of the settings."""

from typing import Final

import pytest

from router.settings import ConfigurationError, Settings, parse

MODEL: Final = '[[model]]\nname = "llama"\n'
ENGINE: Final = '[[engine]]\nname = "one"\nmodel = "llama"\nurl = "http://127.0.0.1:8001"\n'
MINIMAL: Final = MODEL + ENGINE
"""A complete configuration; tables can be prepended."""

HASH: Final = "sha256:" + "0123456789abcdef" * 4
OTHER_HASH: Final = "sha256:" + "f" * 64


def parse_config(text: str, **environment: str) -> Settings:
    return parse(text, environment)


def mistakes(text: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        parse(text, environment)
    reported = caught.value.mistakes
    assert str(caught.value).splitlines() == list(reported)
    assert reported
    return reported


def config_error(text: str, **environment: str) -> str:
    (mistake,) = mistakes(text, **environment)
    return mistake
