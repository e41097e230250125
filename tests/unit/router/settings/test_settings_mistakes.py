"""Every mistake in a configuration is reported in one line with its place."""

import re
from pathlib import Path
from typing import Final

import pytest

from router.core.cache.redis_keys import RESERVED_TENANT_NAMES
from router.settings import ConfigurationError, load
from tests.support.configurations import ENGINE, HASH, MINIMAL, MODEL, config_error, parse_config

DURATION: Final = 'is not a duration; write a number and one of ms, s, m, h, d, as in "10s"'
SIZE: Final = 'is not a size; write a number and one of B, KiB, MiB, GiB, kB, MB, GB, as in "4MiB"'
SHORT: Final = "is too short; the time to live of an entry is at least 1s"
TAKEN: Final = "is reserved in Redis keys and cannot be a tenant's name"
AUTOMATIC: Final = "is reserved for the choice by task and cannot be a model's name"
ADDRESS: Final = (
    "is not a URL such as http://127.0.0.1:8001; use http://, https:// or unix:///PATH, and no user, password or query"
)
NAME: Final = "may only have a-z, 0-9, '.', '_' and '-'"
NO_HASH: Final = "is no hash; make one with `roundhouse keys hash`"
NO_MEMORY: Final = "memory:// is not supported, since replicas could not share it; embedded starts a private Redis"
SCHEMES: Final = (
    "expected embedded, redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, "
    "redis+cluster://, rediss+cluster://"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[router]\nprot = 1\n", "router.prot: no such setting; did you mean port?"),
        ("[routre]\n", "routre: no such setting; did you mean router?"),
        (
            '[router]\nport = "8080"\n',
            "router.port: '8080' is not an integer from 1 to 65535; write numbers without quotes",
        ),
        (
            '["a\\nb"]\n',
            (
                '"a\\nb": no such setting; known settings: router, '
                "cache, responses, batch, auth, tenant, model, engine, gpu, breaker, timeouts, retry, watchdog, tracing"
            ),
        ),
        ("[router]\nport = 0\n", "router.port: 0 is not an integer from 1 to 65535"),
        ("[router]\nport = 65536\n", "router.port: 65536 is not an integer from 1 to 65535"),
        ("[router]\nworkers = 0\n", "router.workers: 0 is not an integer from 1 to 256"),
        ('[router]\nlog_format = "xml"\n', "router.log_format: 'xml' is none of text, json"),
        ("[router]\nhost = 1979-05-27\n", "router.host: 1979-05-27 is not a string; write it in quotes"),
        ('[cache]\nstore = "some"\n', "cache.store: 'some' is none of all, deterministic"),
        ("[cache]\nsamples = 0\n", "cache.samples: 0 is not an integer from 1 to 16"),
        ('[[tenant]]\nname = "a"\nsamples = 17\n', "tenant[0].samples: 17 is not an integer from 1 to 16"),
        (
            '[cache]\nurl = "memcached://x"\n',
            f"cache.url: {SCHEMES}",
        ),
        (
            '[cache]\nurl = "memory://"\n',
            f"cache.url: {NO_MEMORY}",
        ),
        ('[cache]\nurl = "redis+cluster://x/1"\n', "cache.url: a cluster has only database 0"),
        (
            '[cache]\nttl = "500ms"\n',
            f"cache.ttl: '500ms' {SHORT}",
        ),
        ("[cache]\nttl = 0\n", f"cache.ttl: 0 {SHORT}"),
        (
            '[cache]\nstale_if_error = "-1s"\n',
            f"cache.stale_if_error: '-1s' {DURATION}",
        ),
        (
            '[cache]\nlocal = "64"\n',
            f"cache.local: '64' {SIZE}",
        ),
        (
            "[cache]\nlocal = -1\n",
            f"cache.local: -1 {SIZE}",
        ),
        ('[cache]\non_abandon = "wait"\n', "cache.on_abandon: 'wait' is none of cancel, finish"),
        (
            '[[tenant]]\nname = "a"\nttl = "500ms"\n',
            f"tenant[0].ttl: '500ms' {SHORT}",
        ),
        (
            '[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\nttl = 0\n',
            f"tenant[1].ttl: 0 {SHORT}",
        ),
        (
            '[[tenant]]\nname = "a"\nttl = "soon"\n',
            f"tenant[0].ttl: 'soon' {DURATION}",
        ),
        ('[[tenant]]\nname = "a"\nstore = "some"\n', "tenant[0].store: 'some' is none of all, deterministic"),
        ('[cache]\ntimeout = "0s"\n', "cache.timeout: '0s' must be greater than 0"),
        ('[cache]\ncontext_open = ""\n', "cache.context_open: '' must not be empty"),
        ('[auth]\nmode = "none"\n', "auth.mode: 'none' is none of open, keys, header"),
        ('[auth]\nmode = "keys"\n', "auth.mode: 'keys' needs at least one [[tenant]]"),
        ('[auth]\nmode = "header"\n', "auth.mode: 'header' needs at least one [[tenant]]"),
        (
            f'[auth]\nmode = "open"\n[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\nkeys = ["{HASH}"]\n',
            "auth.mode: 'open' cannot be combined with tenant[1].keys, which nobody would need; remove one of them",
        ),
        ('[auth]\nadmin_keys = ["secret"]\n', f"auth.admin_keys[0] {NO_HASH}"),
        ('[auth]\nadmin_keys = "x"\n', "auth.admin_keys is not a list; write [ and ] around it"),
        ("[breaker]\nopen_above = 1.5\n", "breaker.open_above: 1.5 is not a number greater than 0 and at most 1"),
        ("[breaker]\nclose_below = 0.9\n", "breaker.close_below: 0.9 must be less than breaker.open_above"),
        ('[router]\nreceive = "0s"\n', "router.receive: '0s' must be greater than 0"),
        ("[router]\nsend = 0\n", "router.send: 0 must be greater than 0"),
        (
            '[router]\ndrain = "soon"\n',
            f"router.drain: 'soon' {DURATION}",
        ),
        ('[router]\nkeep_alive = "0s"\n', "router.keep_alive: '0s' must be greater than 0"),
        ('[timeouts]\nfirst_token = "0s"\n', "timeouts.first_token: '0s' must be greater than 0"),
        ('[watchdog]\ninterval = "10ms"\n', "watchdog.interval: '10ms' is too short; the minimum is 1s"),
        ('[watchdog]\nrestart_after = "5m"\n', "watchdog.restart_after: '5m' is too short; the minimum is 1h"),
        ("[timeouts]\nconnect = 0\n", "timeouts.connect: 0 must be greater than 0"),
        ("[timeouts]\nmin_tokens_per_second = 0\n", "timeouts.min_tokens_per_second: 0 is not a number greater than 0"),
        ('[[tenant]]\nname = "a:b"\n', f"tenant[0].name: 'a:b' {NAME}"),
        ('[[tenant]]\nname = "Acme"\n', f"tenant[0].name: 'Acme' {NAME}"),
        ('[[tenant]]\nname = ""\n', "tenant[0].name: '' must not be empty"),
        ('[[tenant]]\nname = "acme\\n"\n', f"tenant[0].name: 'acme\\n' {NAME}"),
        *((f'[[tenant]]\nname = "{name}"\n', f"tenant[0].name: {name!r} {TAKEN}") for name in RESERVED_TENANT_NAMES),
        (
            f'[[tenant]]\nname = "a"\nkeys = ["{HASH}\\n"]\n',
            f"tenant[0].keys[0] {NO_HASH}",
        ),
        (f'[[tenant]]\nname = "{"a" * 65}"\n', "tenant[0].name has 65 characters; the maximum is 64"),
        ("[[tenant]]\n", 'tenant[0].name is missing; write name = "…" below [[tenant]]'),
        (
            '[[tenant]]\nname = "a"\n[[tenant]]\nname = "b"\nkeys = ["sha256:x"]\n',
            f"tenant[1].keys[0] {NO_HASH}",
        ),
        (
            '[[tenant]]\nname = "a"\nrequests_per_minute = 0\n',
            "tenant[0].requests_per_minute: 0 is not an integer from 1 to 1000000000000",
        ),
        (
            '[[tenant]]\nname = "a"\n[[tenant]]\nname = "a"\n',
            "tenant[1].name: 'a' is already used by tenant[0].name; choose another",
        ),
        (
            f'[[tenant]]\nname = "a"\nkeys = ["{HASH}"]\n[[tenant]]\nname = "b"\nkeys = ["{HASH}"]\n',
            "tenant[1].keys[0] is already used by tenant[0].keys[0]; choose another",
        ),
        ("[tenant]\n", "tenant is not a list; write [[tenant]]"),
    ],
)
def test_a_mistake_is_reported_with_its_place(text: str, message: str) -> None:
    assert config_error(text + MINIMAL) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "model is missing; add at least one [[model]]"),
        (MODEL, "model[0].name: 'llama' has no engine; add an [[engine]] with this model"),
        (MODEL + 'wake = "0s"\n' + ENGINE, "model[0].wake: '0s' must be greater than 0"),
        (
            MODEL.replace("llama", "auto") + ENGINE.replace("llama", "auto"),
            f"model[0].name: 'auto' {AUTOMATIC}",
        ),
        (
            MODEL + 'aliases = ["auto"]\n' + ENGINE,
            f"model[0].aliases[0]: 'auto' {AUTOMATIC}",
        ),
        (
            MODEL + 'aliases = ["x", "x"]\n' + ENGINE,
            "model[0].aliases[1]: 'x' is already used by model[0].aliases[0]; choose another",
        ),
        (
            MODEL + 'aliases = ["llama"]\n' + ENGINE,
            "model[0].aliases[0]: 'llama' is already used by model[0].name; choose another",
        ),
        (MODEL + 'fallback = "phi"\n' + ENGINE, "model[0].fallback: 'phi' is not a model; the models are llama"),
        (
            MODEL + 'fallback = "llama"\n' + ENGINE,
            "model[0].fallback: 'llama' is the model itself; a model cannot be its own fallback",
        ),
        (
            '[router]\ndefault_model = "phi"\n' + MINIMAL,
            "router.default_model: 'phi' is not a model; the models are llama",
        ),
        (
            '[router]\ndefault_model = "auto"\n' + MINIMAL,
            "router.default_model: 'auto' has no model; set auto of a [[model]]",
        ),
        (MODEL + 'auto = ["poetry"]\n' + ENGINE, "model[0].auto[0]: 'poetry' is none of code, chat"),
        (
            MINIMAL.replace("llama", "meta/llama"),
            f"model[0].name: 'meta/llama' {NAME}",
        ),
        (
            MINIMAL.replace('model = "llama"', 'model = "phi"') + ENGINE.replace("one", "two"),
            "engine[0].model: 'phi' is not a model; the models are llama",
        ),
        (MINIMAL + ENGINE, "engine[1].name: 'one' is already used by engine[0].name; choose another"),
        ("[router]\nexplore = 1.5\n" + MINIMAL, "router.explore: 1.5 is not a number from 0 to 1"),
        ("[router]\nexplore = -0.1\n" + MINIMAL, "router.explore: -0.1 is not a number from 0 to 1"),
        (MINIMAL + 'task = "poetry"\n', "engine[0].task: 'poetry' is none of code, chat, any"),
        (MINIMAL + "max_model_len = 0\n", "engine[0].max_model_len: 0 is not an integer of at least 1"),
        (
            MINIMAL + 'urls = ["http://a"]\n',
            "engine[0].url: 'http://127.0.0.1:8001' cannot be combined with urls; set only one of them",
        ),
        (
            MINIMAL.replace("url =", "served_model ="),
            "engine[0].url is missing; set it, or urls for several replicas",
        ),
        (
            MINIMAL.replace("http://", ""),
            f"engine[0].url: '127.0.0.1:8001' {ADDRESS}",
        ),
        (
            MINIMAL.replace("8001", "eighty"),
            f"engine[0].url {ADDRESS}",
        ),
        (
            MINIMAL.replace("http://", "http://me:secret@"),
            f"engine[0].url {ADDRESS}",
        ),
        (
            '[cache]\nurl = "redis://:secret@h:abc/0"\n' + MINIMAL,
            "cache.url: a port must be from 1 to 65535; in a password, : / ? # and @ must be written as %XX",
        ),
        (
            '[cache]\nurl = "redis://:secret@h?socket_timeout=soon"\n' + MINIMAL,
            "cache.url: the known options are db, each once and with a value; TLS options need a rediss scheme",
        ),
        (
            MINIMAL.replace("8001", "0"),
            f"engine[0].url: 'http://127.0.0.1:0' {ADDRESS}",
        ),
        (
            MINIMAL.replace("8001", "8001\\n"),
            f"engine[0].url {ADDRESS}",
        ),
        (
            MINIMAL.replace("8001", "8001/ "),
            f"engine[0].url {ADDRESS}",
        ),
        (
            MINIMAL.replace("http://127.0.0.1:8001", "http://"),
            f"engine[0].url {ADDRESS}",
        ),
        (
            MINIMAL.replace("http://127.0.0.1:8001", "http://[::1"),
            f"engine[0].url {ADDRESS}",
        ),
        (MINIMAL + "[engine.launch]\n", 'engine[0].launch.target is missing; write target = "…" below [engine.launch]'),
        (
            MINIMAL + '[engine.launch]\ntarget = "t"\ngpus = [-1]\n',
            "engine[0].launch.gpus[0]: -1 is not an integer of at least 0",
        ),
        (
            MINIMAL + '[engine.launch]\ntarget = "t"\nenv = { A = 1 }\n',
            "engine[0].launch.env.A is not a string; write it in quotes",
        ),
        (
            MINIMAL.replace('url = "http://127.0.0.1:8001"', 'urls = ["http://a", "http://b"]')
            + '[engine.launch]\ntarget = "t"\n',
            "engine[0].launch needs an engine with one url; add an [[engine]] for each",
        ),
    ],
)
def test_a_mistake_about_models_and_engines_is_reported_with_its_place(text: str, message: str) -> None:
    assert config_error(text) == message


@pytest.mark.parametrize("text", ["[", "a = ", "x = 1\nx = 2\n", "a = \x00", "[router]\n[router]\n"])
def test_invalid_toml_is_reported_with_its_line(text: str) -> None:
    assert re.match(r"not valid TOML: .*line \d", config_error(text)) or "end of document" in config_error(text)


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    for content, message in (
        (b"[router]\nport = 0\n", ":2: router.port: "),
        (b"\xff", ": not UTF-8 text"),
        (b"[", ": not valid"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError) as caught:
            load(path, {})
        assert str(caught.value).startswith(f"{path}{message}")


def test_a_file_that_cannot_be_read_is_reported_by_its_name(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            load(path, {})


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, "a = " + "9" * 10_000, "[" + "a." * 5_000 + "a]"])
def test_input_that_is_too_much_for_a_parser_is_reported_too(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_config(text)


def test_a_tenant_has_room_for_one_response_at_least() -> None:
    text = f'[responses]\nmax_size = "2MiB"\nmax_bytes_per_tenant = "1MiB"\n{MINIMAL}'
    assert config_error(text) == "responses.max_bytes_per_tenant: '1MiB' must be at least responses.max_size"


def test_a_response_in_the_background_has_some_time() -> None:
    text = f'[responses]\nbackground_timeout = "0s"\n{MINIMAL}'
    assert config_error(text) == "responses.background_timeout: '0s' must be greater than 0"


def test_a_number_of_any_length_is_refused() -> None:
    assert config_error(f"[router]\nport = 0x{'f' * 10_000}\n{MINIMAL}") == (
        "router.port: a number this large is not an integer from 1 to 65535"
    )


def test_a_byte_order_mark_at_the_start_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
    assert load(path, {}) == parse_config(MINIMAL)
    path.write_bytes(b"\xef\xbb\xbf\xef\xbb\xbf" + MINIMAL.encode())
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        load(path, {})
