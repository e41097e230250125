"""Every mistake in a configuration is told in one line that names its place."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.cache.redis_keys import RESERVED
from router.settings import ConfigurationError, load
from tests.support.configurations import ENGINE, HASH, LEAST, MODEL, mistake, read


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[router]\nprot = 1\n", "router: object contains unknown field `prot`"),
        ("[routre]\n", "top level: object contains unknown field `routre`"),
        ('[router]\nport = "8080"\n', "router.port: expected `int`, got `str`"),
        ('["a\\nb"]\n', "top level: object contains unknown field `a b`"),
        ("[router]\nport = 0\n", "router.port: expected `int` >= 1"),
        ("[router]\nport = 65536\n", "router.port: expected `int` <= 65535"),
        ("[router]\nworkers = 0\n", "router.workers: "),
        ('[router]\nlog_format = "xml"\n', "router.log_format: invalid enum value 'xml'"),
        ("[router]\nhost = 1979-05-27\n", "router.host: "),
        ('[cache]\nstore = "some"\n', "cache.store: invalid enum value 'some'"),
        (
            '[cache]\nurl = "memcached://x"\n',
            "cache.url: expected embedded, redis://, rediss://, unix://, redis+sentinel://",
        ),
        ('[cache]\nurl = "memory://"\n', "cache.url: memory:// is not supported: "),
        ('[cache]\nurl = "redis+cluster://x/1"\n', "cache.url: a cluster has only database 0"),
        ('[cache]\nttl = "500ms"\n', "cache.ttl: every entry needs a time to live"),
        ("[cache]\nttl = 0\n", "cache.ttl: "),
        ('[cache]\nstale_if_error = "-1s"\n', "cache.stale_if_error: "),
        ('[cache]\nlocal = "64"\n', "cache.local: "),
        ("[cache]\nlocal = -1\n", "cache.local: "),
        ('[cache]\non_abandon = "wait"\n', "cache.on_abandon: invalid enum value 'wait'"),
        ('[[tenant]]\nname = "a"\nttl = "500ms"\n', "tenant[0].ttl: every entry needs a time to live"),
        ('[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\nttl = 0\n', "tenant[1].ttl: every entry needs"),
        ('[[tenant]]\nname = "a"\nttl = "soon"\n', "tenant[0].ttl: "),
        ('[[tenant]]\nname = "a"\nstore = "some"\n', "tenant[0].store: invalid enum value 'some'"),
        ('[cache]\ntimeout = "0s"\n', "cache.timeout, cache.retry: "),
        ('[cache]\ncontext_open = ""\n', "cache.context_open, cache.context_close: "),
        ('[auth]\nmode = "none"\n', "auth.mode: invalid enum value 'none'"),
        ('[auth]\nmode = "keys"\n', "auth.mode: with keys, "),
        ('[auth]\nmode = "header"\n', "auth.mode: with header, "),
        ('[auth]\nadmin_keys = ["secret"]\n', "auth.admin_keys[0]: "),
        ('[auth]\nadmin_keys = "x"\n', "auth.admin_keys: "),
        ("[breaker]\nopen_above = 1.5\n", "breaker.open_above: "),
        ("[breaker]\nclose_below = 0.9\n", "breaker.close_below: must be less than open_above"),
        ('[router]\nreceive = "0s"\n', "router.receive: must be more than nothing"),
        ("[router]\nsend = 0\n", "router.send: must be more than nothing"),
        ('[router]\ndrain = "soon"\n', "router.drain: "),
        ('[timeouts]\nfirst_token = "0s"\n', "timeouts.first_token: must be more than nothing"),
        ("[timeouts]\nconnect = 0\n", "timeouts.connect: must be more than nothing"),
        ("[timeouts]\nmin_tokens_per_second = 0\n", "timeouts.min_tokens_per_second: "),
        ('[[tenant]]\nname = "a:b"\n', "tenant[0].name: "),
        ('[[tenant]]\nname = "Acme"\n', "tenant[0].name: "),
        ('[[tenant]]\nname = ""\n', "tenant[0].name: "),
        ('[[tenant]]\nname = "acme\\n"\n', "tenant[0].name: "),
        *((f'[[tenant]]\nname = "{name}"\n', f"tenant[0].name: {name!r} stands for") for name in RESERVED),
        (f'[[tenant]]\nname = "a"\nkeys = ["{HASH}\\n"]\n', "tenant[0].keys[0]: "),
        (f'[[tenant]]\nname = "{"a" * 65}"\n', "tenant[0].name: "),
        ("[[tenant]]\n", "tenant[0]: object missing required field `name`"),
        ('[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\nkeys = ["sha256:x"]\n', "tenant[1].keys[0]: "),
        ('[[tenant]]\nname = "a"\nrequests_per_minute = 0\n', "tenant[0].requests_per_minute: "),
        ('[[tenant]]\nname = "a"\n[[tenant]]\nname = "a"\n', "tenant: the name 'a' is given twice"),
        (
            f'[[tenant]]\nname = "a"\nkeys = ["{HASH}"]\n[[tenant]]\nname = "b"\nkeys = ["{HASH}"]\n',
            "tenant: two tenants cannot have the same key",
        ),
        ("[tenant]\n", "tenant: expected `array`, got `object`"),
    ],
)
def test_a_mistake_is_told_by_its_place(text: str, said: str) -> None:
    assert mistake(text + LEAST).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "model: there must be at least one [[model]]"),
        (MODEL, "model[0].name: no engine has the model 'llama'"),
        (MODEL.replace("llama", "auto") + ENGINE.replace("llama", "auto"), "model[0].name: 'auto' stands for"),
        (MODEL + 'aliases = ["auto"]\n' + ENGINE, "model[0].name: 'auto' stands for"),
        (MODEL + 'aliases = ["x", "x"]\n' + ENGINE, "model: the name 'x' is given twice"),
        (MODEL + 'aliases = ["llama"]\n' + ENGINE, "model: the name 'llama' is given twice"),
        (MODEL + 'fallback = "phi"\n' + ENGINE, "model[0].fallback: there is no model 'phi'"),
        (MODEL + 'fallback = "llama"\n' + ENGINE, "model[0].fallback: a model cannot fall back on itself"),
        (MODEL + 'auto = ["poetry"]\n' + ENGINE, "model[0].auto[0]: invalid enum value 'poetry'"),
        (MODEL.replace("llama", "meta/llama") + ENGINE, "model[0].name: "),
        (
            LEAST.replace('model = "llama"', 'model = "phi"') + ENGINE.replace("one", "two"),
            "engine[0].model: there is no",
        ),
        (LEAST + ENGINE, "engine: the name 'one' is given twice"),
        ("[router]\nexplore = 1.5\n" + LEAST, "router.explore: "),
        ("[router]\nexplore = -0.1\n" + LEAST, "router.explore: "),
        (LEAST + 'task = "poetry"\n', "engine[0].task: invalid enum value 'poetry'"),
        (LEAST + "max_model_len = 0\n", "engine[0].max_model_len: "),
        (LEAST + 'urls = ["http://a"]\n', "engine[0].url: give either url or urls"),
        (LEAST.replace("url =", "served_model ="), "engine[0].url: give either url or urls"),
        (LEAST.replace("http://", ""), "engine[0].url: '127.0.0.1:8001' is not an http:// or https:// address"),
        (LEAST.replace("8001", "eighty"), "engine[0].url: "),
        (LEAST.replace("http://", "http://me:secret@"), "engine[0].url: '127.0.0.1:8001' is not "),
        ('[cache]\nurl = "redis://:secret@h:abc/0"\n' + LEAST, "cache.url: "),
        ('[cache]\nurl = "redis://:secret@h?socket_timeout=soon"\n' + LEAST, "cache.url: "),
        (LEAST.replace("8001", "0"), "engine[0].url: "),
        (LEAST.replace("8001", "8001\\n"), "engine[0].url: "),
        (LEAST.replace("8001", "8001/ "), "engine[0].url: "),
        (LEAST.replace("http://127.0.0.1:8001", "http://"), "engine[0].url: "),
        (LEAST.replace("http://127.0.0.1:8001", "http://[::1"), "engine[0].url: "),
        (LEAST + "[engine.launch]\n", "engine[0].launch: object missing required field `target`"),
        (LEAST + '[engine.launch]\ntarget = "t"\ngpus = [-1]\n', "engine[0].launch.gpus[0]: "),
        (LEAST + '[engine.launch]\ntarget = "t"\nenv = { A = 1 }\n', "engine[0].launch.env[...]: "),
        (
            LEAST.replace('url = "http://127.0.0.1:8001"', 'urls = ["http://a", "http://b"]')
            + '[engine.launch]\ntarget = "t"\n',
            "engine[0].launch: an engine that roundhouse starts has one url",
        ),
    ],
)
def test_a_mistake_about_models_and_engines_is_told_by_its_place(text: str, said: str) -> None:
    assert mistake(text).startswith(said)


def test_several_mistakes_are_told_at_once() -> None:
    message = mistake(f'[cache]\nttl = "1ms"\n[auth]\nmode = "keys"\n{LEAST}')
    assert "cache.ttl: " in message
    assert "auth.mode: " in message


@pytest.mark.parametrize("text", ["[", "a = ", "x = 1\nx = 2\n", "a = \x00", "[router]\n[router]\n"])
def test_what_is_no_toml_is_told_with_its_line(text: str) -> None:
    assert re.match(r"not valid TOML: .*line \d", mistake(text)) or "end of document" in mistake(text)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for content, said in ((b"[router]\nport = 0\n", "router.port: "), (b"\xff", "not UTF-8 text"), (b"[", "not valid")):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError) as caught:
            load(path, {})
        assert str(caught.value).startswith(f"{path}: {said}")


def test_a_file_that_cannot_be_read_is_told_by_its_name(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            load(path, {})


WORD: Final = st.sampled_from(
    ["router", "cache", "model", "engine", "name", "url", "ttl", "port", "launch", "a\\nb", "é"]
)
VALUE: Final = st.sampled_from(
    ['"x"', "1", "[]", "{}", "true", '"1s"', '"${A}"', '"a\\nb"', "1.5", '["x"]', "1979-05-27"]
)


@given(st.lists(st.tuples(st.sampled_from(["[{}]", "[[{}]]", '"{}" = ']), WORD, VALUE), max_size=6))
def test_no_configuration_raises_anything_but_one_line(lines: list[tuple[str, str, str]]) -> None:
    text = "\n".join(form.format(f'"{word}"' if "[" in form else word) + ("" if "[" in form else value)
                     for form, word, value in lines)  # fmt: skip
    with suppress(ConfigurationError):
        read(text, A="x")
        return
    mistake(text, A="x")
