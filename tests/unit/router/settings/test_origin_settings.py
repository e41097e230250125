"""`router.allowed_origins`: which are accepted, and what is said of the others."""

import json

import pytest

from router.settings import ConfigurationError, parse

REST = '[[model]]\nname = "llama"\n[[engine]]\nname = "one"\nmodel = "llama"\nurl = "http://127.0.0.1:8001"\n'


def origins(*values: str) -> list[str]:
    return parse(f"[router]\nallowed_origins = {json.dumps(values)}\n{REST}", {}).router.allowed_origins


def test_no_origin_is_allowed_by_default() -> None:
    assert parse(REST, {}).router.allowed_origins == []


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "https://app.example",
        "http://localhost:3000",
        "http://127.0.0.1:8000",
        "http://[::1]:3000",
        "https://xn--bcher-kva.example",
        "chrome-extension://abcdefghijklmnop",
        "app://obsidian.md",
    ],
)
def test_an_origin_is_accepted_as_a_browser_sends_it(origin: str) -> None:
    assert origins(origin) == [origin]


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        ("https://app.example/", "has a path; an origin ends after the host and port: write https://app.example"),
        ("https://app.example/chat", "write https://app.example"),
        ("https://App.Example", "has capital letters, which browsers do not send; write https://app.example"),
        ("https://app.example:443", "has the default port, which browsers leave out; write https://app.example"),
        ("http://localhost:80", "write http://localhost"),
        ("http://localhost:70000", "has no valid port"),
        ("https://*.example", "has a wildcard; write each origin out"),
        ("null", "cannot be allowed: every sandboxed page and local file has this origin"),
        ("app.example", "is not an origin such as https://app.example"),
        ("https://user:password@app.example", "is not an origin"),
        ("https://app.example\r\nx-evil: 1", "is not an origin"),
        ("https://bücher.example", "is not an origin"),
    ],
)
def test_anything_else_is_refused_with_what_to_write(origin: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        origins(origin)
    assert str(caught.value).startswith("router.allowed_origins[0]")
    assert message in str(caught.value)


def test_a_list_has_no_repetition_and_the_star_stands_alone() -> None:
    with pytest.raises(ConfigurationError, match=r"\[1\].* is listed twice"):
        origins("https://a.example", "https://a.example")
    with pytest.raises(ConfigurationError, match="cannot be combined with other origins"):
        origins("https://a.example", "*")
    with pytest.raises(ConfigurationError, match="at most 100 origins"):
        origins(*(f"https://a{number}.example" for number in range(101)))
