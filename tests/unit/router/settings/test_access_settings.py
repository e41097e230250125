"""How the router reaches an engine, as the configuration says it."""

from pathlib import Path

import pytest

from router.settings import ConfigurationError, parse
from router.settings.tables import EngineSettings
from tests.support.certificate import certificate, needs_openssl

SECRET = "sk-secret-1234567890"


def text(settings: str, url: str = "http://127.0.0.1:8001") -> str:
    return f'[[model]]\nname = "llama"\n[[engine]]\nname = "one"\nmodel = "llama"\nurl = "{url}"\n{settings}\n'


def engine(settings: str, url: str = "http://127.0.0.1:8001", **environment: str) -> EngineSettings:
    return parse(text(settings, url), environment).engine[0]


def test_the_key_is_sent_as_a_bearer_token_beside_the_headers() -> None:
    read = engine('api_key = "${KEY}"\nheaders = { X-Team = "${TEAM}" }', KEY="k", TEAM="ml")
    assert read.request_headers == {"authorization": "Bearer k", "x-team": "ml"}
    assert engine("").request_headers == {}


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:8001/v1", "http://h:8001"),
        ("http://h:8001/v1/", "http://h:8001"),
        ("http://h:8001/", "http://h:8001"),
        ("https://h/openai/v1", "https://h/openai"),
        ("unix:///run/engine.sock", "unix:///run/engine.sock"),
        ("http://v1", "http://v1"),
        ("http://v1/v1", "http://v1"),
        ("http://[::1]:8001/v1", "http://[::1]:8001"),
    ],
)
def test_a_url_is_understood_as_clients_of_the_api_write_it(url: str, address: str) -> None:
    assert engine("", url).addresses == [address]


@pytest.mark.parametrize("url", ["unix://run/engine.sock", "unix://", "http://h/?key=1", "http://u:p@h", "ftp://h"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a URL"):
        engine("", url)


LAUNCH = '[engine.launch]\ntarget = "t"'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (f'api_key = "{SECRET} \\n"', "engine[0].api_key must be 1 to 8192 printable ASCII characters"),
        ('api_key = ""', "engine[0].api_key must be 1 to 8192 printable ASCII characters"),
        ('headers = { "a b" = "1" }', 'engine[0].headers."a b": is not the name of a header'),
        ('headers = { Host = "h" }', "engine[0].headers.Host: is a header that the router sets itself; remove it"),
        (
            f'api_key = "k"\nheaders = {{ Authorization = "Basic {SECRET}" }}',
            "engine[0].headers.Authorization: cannot be combined with api_key; set only one of them",
        ),
        ('headers = { A = "1", a = "2" }', "engine[0].headers.A: is set twice, in different case"),
        (f'headers = {{ A = "{SECRET}é" }}', "engine[0].headers.A must be 1 to 8192 printable ASCII characters"),
        ('ca_file = "/no/such.pem"', "is not a file with the certificates of the authorities as PEM"),
        ('health = "health"', "engine[0].health: 'health' is not a path such as /health"),
        ('kind = "vlm"', "engine[0].kind: 'vlm' is none of vllm, sglang, llama.cpp, ollama, tgi, openai"),
        (f'api_key = "k"\n{LAUNCH}', "engine[0].api_key: cannot be combined with [engine.launch]"),
        (f'kind = "ollama"\n{LAUNCH}', "engine[0].kind: 'ollama' must be \"vllm\" for an engine with [engine.launch]"),
    ],
)
def test_a_mistake_is_named_without_its_value_if_that_may_be_secret(settings: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        engine(settings)
    assert message in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_engine_that_is_started_here_is_at_a_port() -> None:
    with pytest.raises(ConfigurationError, match=r"engine\[0\]\.url.* must have a host and a port"):
        engine(LAUNCH, "unix:///run/engine.sock")


@needs_openssl
def test_a_file_of_authorities_must_hold_a_certificate(tmp_path: Path) -> None:
    assert engine(f'ca_file = "{certificate(tmp_path)}"').ca_file is not None
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigurationError, match="is not a file with the certificates"):
        engine(f'ca_file = "{empty}"')
