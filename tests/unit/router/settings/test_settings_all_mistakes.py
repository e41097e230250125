"""All mistakes of a configuration are reported at once, without false ones and without secrets."""

import json
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.settings import ConfigurationError, Settings, load
from router.settings.units import parse_quantity
from router.settings.walk import Walk
from tests.support.configurations import ENGINE, HASH, MINIMAL, MODEL, config_error, mistakes, parse_config

# Completeness


def test_mistakes_of_every_kind_are_reported_at_once_in_the_order_of_the_file() -> None:
    text = """
        [router]
        prot = 1
        port = "8080"
        workers = "${NOWHERE}"
        [cache]
        ttl = "1ms"
        [auth]
        mode = "key"
        [[tenant]]
        keys = ["secret"]
        [[model]]
        name = "llama"
        [[model]]
        name = "Bad:Name"
        fallback = "lama"
        [[engine]]
        name = "one"
        model = "llama"
        [[engine]]
        name = "one"
        model = "Bad:Name"
        url = "http://a"
    """
    assert mistakes(text) == (
        "router.prot: no such setting; did you mean port?",
        "router.port: '8080' is not an integer from 1 to 65535; write numbers without quotes",
        "router.workers: environment variable NOWHERE is not set; set it, or write ${NOWHERE:-…} with a default",
        "auth.mode: 'key' is none of open, keys, header",
        "tenant[0].keys[0] is no hash; make one with `roundhouse keys hash`",
        'tenant[0].name is missing; write name = "…" below [[tenant]]',
        "model[1].name: 'Bad:Name' may only have a-z, 0-9, '.', '_' and '-'",
        "cache.ttl: '1ms' is too short; the time to live of an entry is at least 1s",
        "model[1].fallback: 'lama' is not a model; did you mean llama?",
        "engine[0].url is missing; set it, or urls for several replicas",
        "engine[1].name: 'one' is already used by engine[0].name; choose another",
    )


def test_each_line_names_the_file_and_the_line_in_it(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f'[router]\nprot = 1\nport = "x"\n{MINIMAL}')
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    assert [line.partition(": ")[0] for line in str(caught.value).splitlines()] == [f"{path}:2", f"{path}:3"]


def test_each_missing_variable_is_reported() -> None:
    text = MINIMAL.replace("127.0.0.1:8001", "${HOST}:${PORT}/${HOST}")
    assert [message.split(";")[0] for message in mistakes(text)] == [
        f"engine[0].url: environment variable {name} is not set" for name in ("HOST", "PORT")
    ]


# No false ones

SIZE: Final = 'is not a size; write a number and one of B, KiB, MiB, GiB, kB, MB, GB, as in "4MiB"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL.replace("[[model]]", "[[modle]]"), "modle: no such setting; did you mean model?"),
        (MINIMAL.replace("[[engine]]", "[[engin]]"), "engin: no such setting; did you mean engine?"),
        (MINIMAL.replace("[[engine]]", "[engine]"), "engine is not a list; write [[engine]]"),
        (MINIMAL.replace("url =", "ulr ="), "engine[0].ulr: no such setting; did you mean url?"),
        (
            MINIMAL.replace("url =", "urls ="),
            "engine[0].urls is not a list; write [ and ] around it",
        ),
        (MODEL.replace("name", "nmae") + ENGINE, "model[0].nmae: no such setting; did you mean name?"),
        (
            f"model = [1]\n{ENGINE}",
            "model[0] is not a table; write [[model]] on its own line and its settings below",
        ),
        (MODEL.replace('"llama"', "1") + ENGINE, "model[0].name: 1 is not a string; write it in quotes"),
        (
            MINIMAL.replace('url = "http://127.0.0.1:8001"', "urls = [1]"),
            "engine[0].urls[0] is not a string; write it in quotes",
        ),
        (
            f'[auth]\nmode = "keys"\n[[tenant]]\nname = "a"\nkeys = "{HASH}"\n{MINIMAL}',
            "tenant[0].keys is not a list; write [ and ] around it",
        ),
        (
            f'[router]\nmax_body = "1 GiB"\nmax_bodies = "2 gib"\n{MINIMAL}',
            f"router.max_bodies: '2 gib' {SIZE}",
        ),
        (
            f"[breaker]\nopen_above = 0\nclose_below = 0.9\n{MINIMAL}",
            "breaker.open_above: 0 is not a number greater than 0 and at most 1",
        ),
        (
            MINIMAL.replace("llama", "Llama"),
            "model[0].name: 'Llama' may only have a-z, 0-9, '.', '_' and '-'",
        ),
    ],
)
def test_consequences_of_a_mistake_are_not_reported(text: str, message: str) -> None:
    assert config_error(text) == message


# No secrets

SECRET: Final = "hunter2"
ADDRESS: Final = f"redis://:{SECRET}@h"


@pytest.mark.parametrize(
    "text",
    [
        f'cache = "{ADDRESS}"\n{MINIMAL}',
        f'cache = ["{ADDRESS}"]\n{MINIMAL}',
        f'router = {{ state = ["{SECRET}"] }}\n{MINIMAL}',
        f'[cache]\nurl = "{ADDRESS}:abc"\n{MINIMAL}',
        f'[cache]\nurl = ["{ADDRESS}"]\n{MINIMAL}',
        f'[cache]\nurl = "{SECRET}"\n{MINIMAL}',
        f'[cache]\nttl = "{ADDRESS}"\n{MINIMAL}',
        f'[cache]\nttl = "sk-{SECRET}"\n{MINIMAL}',
        f'[cache]\nttl = "${{KEY}}"\n{MINIMAL}',
        f'[cache]\nttl = "${{NONE:-sk-{SECRET}}}"\n{MINIMAL}',
        f'[cache]\n"sk-{SECRET}" = 1\n{MINIMAL}',
        f'[cache]\npassword = "{SECRET}"\n{MINIMAL}',
        f'[auth]\nmode = "${{KEY}}"\n{MINIMAL}',
        f'[auth]\nadmin_keys = "{SECRET}"\n{MINIMAL}',
        f'[auth]\nadmin_keys = ["{SECRET}"]\n{MINIMAL}',
        f'[auth]\nadmin_keys = [["{SECRET}"]]\n{MINIMAL}',
        f'[[tenant]]\nname = "rh-WW8p4zyaN6VF1{SECRET}JZ1V0y07GNFQ9Ks-YybTaBW6s5FB8"\n{MINIMAL}',
        f'[[tenant]]\nname = "a"\nkeys = [{{ key = "{SECRET}" }}]\n{MINIMAL}',
        MINIMAL.replace("http://", f"http://me:{SECRET}@"),
        MINIMAL.replace(":8001", f":{SECRET}"),
        MINIMAL.replace(":8001", f":x?token={SECRET}"),
        MINIMAL.replace("127.0.0.1:8001", "${KEY}:x"),
        MINIMAL + f'token = "{SECRET}"\n',
        MINIMAL + f'[engine.launch]\ntarget = "t"\nargs = "--api-key={SECRET}"\n',
        MINIMAL + f'[engine.launch]\ntarget = "t"\nargs = [["--api-key={SECRET}"]]\n',
        MINIMAL + f'[engine.launch]\ntarget = "t"\nenv = "HF_TOKEN={SECRET}"\n',
        MINIMAL + f'[engine.launch]\ntarget = "t"\nenv = {{ HF_TOKEN = ["{SECRET}"] }}\n',
        MINIMAL.replace('"llama"\nurl', '"${KEY}"\nurl'),
    ],
)
def test_values_that_may_be_secret_are_never_shown(text: str) -> None:
    assert SECRET not in "\n".join(mistakes(text, KEY=SECRET))


# Arbitrary input

WORDS: Final = (
    "router", "cache", "auth", "tenant", "model", "engine", "breaker", "timeouts", "name", "url", "urls", "keys",
    "mode", "ttl", "port", "local", "launch", "target", "env", "args", "gpus", "aliases", "fallback", "explore",
)  # fmt: skip
TEXTS: Final = st.one_of(
    st.sampled_from(
        ["", "llama", "open", "keys", "chat", "0", "10s", "4MiB", "${A}", "${B}", "http://a", HASH, "a\nb"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=70),
)
NAMES: Final = st.one_of(st.sampled_from(WORDS), TEXTS)
VALUES: Final[st.SearchStrategy[Any]] = st.recursive(
    st.one_of(TEXTS, st.booleans(), st.integers(), st.integers(-2, 3), st.floats(), st.dates()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=25,
)


def toml(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(name)} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_values_are_written_as_toml_reads_them() -> None:
    assert toml({"a": [1, True, -0.5, date(2000, 1, 1)], 'b"': "é\x7f\n"}) == (
        '{"a" = [1, true, -0.5, 2000-01-01], "b\\"" = "é\\u007f\\n"}'
    )


@given(st.dictionaries(NAMES, VALUES, max_size=6))
def test_no_configuration_raises_anything_but_the_error_of_the_settings(tables: dict[str, Any]) -> None:
    text = "\n".join(f"{toml(name)} = {toml(value)}" for name, value in tables.items())
    with suppress(ConfigurationError):
        parse_config(text, A="x")
        return
    lines = mistakes(text, A="x")
    assert "not valid TOML" not in lines[0]
    assert all(line.isprintable() for line in lines)


FIELDS: Final = {
    field.name: [inner.name for inner in msgspec.structs.fields(kind)]
    for field in msgspec.structs.fields(Settings)
    for kind in [*getattr(field.type, "__args__", ()), field.type]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}


@st.composite
def nearly_good(draw: st.DrawFn) -> dict[str, Any]:
    """Tables with existing settings, many of which have valid values."""
    raw: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(sorted(FIELDS)), unique=True, max_size=3)):
        table = draw(st.dictionaries(st.sampled_from(FIELDS[name]), st.one_of(TEXTS, VALUES), max_size=4))
        listed = name in ("tenant", "model", "engine")
        raw[name] = [{"name": "a", **({"model": "a"} if name == "engine" else {}), **table}] if listed else table
    return raw


@given(nearly_good())
def test_the_settings_are_those_that_msgspec_reads(raw: dict[str, Any]) -> None:
    walk = Walk({"A": "x", "B": "x"})
    parsed = walk.read(Settings, raw)
    filled = json.loads(json.dumps(raw, default=str).replace("${A}", "x").replace("${B}", "x"))
    try:
        expected = msgspec.convert(filled, Settings, dec_hook=parse_quantity)
    except msgspec.ValidationError:
        assert walk.mistakes
        return
    assert walk.mistakes == []
    assert parsed == expected
