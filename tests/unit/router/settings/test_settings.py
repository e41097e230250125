"""Parsing a configuration: defaults, durations and sizes, environment variables, and derived settings."""

from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import astuple

from router.settings import load, parse, tenants
from router.settings.units import Bytes, Seconds
from tests.support.configurations import ENGINE, HASH, MINIMAL, MODEL, OTHER_HASH, config_error, parse_config
from tests.support.paths import ROOT

# Settings


def test_everything_except_the_models_and_engines_has_a_default() -> None:
    settings = parse_config(MINIMAL)
    assert (settings.router.host, settings.router.port, settings.router.workers) == ("127.0.0.1", 8080, 1)
    assert [float(settings.cache.ttl), float(settings.cache.stale_if_error)] == [86400, 3600]
    assert (settings.cache.max_entry, settings.cache.local) == (1 << 20, 64 << 20)
    assert (settings.cache.context_open, settings.cache.context_close) == ("<context>", "</context>")
    assert list(map(float, astuple(settings.timeouts))) == [5, 30, 15, 10, 10, 15]
    assert settings.auth_mode == "open"
    assert settings.engine[0].task == "any"


def test_heartbeats_can_be_turned_off() -> None:
    assert parse_config(MINIMAL + '[timeouts]\nheartbeat = "0s"\n').timeouts.heartbeat == Seconds(0)


DESIGNED: Final = f"""
[router]
host = "127.0.0.1"
port = 8080
workers = 1
log_format = "text"
max_body = "4MiB"

[cache]
url = "embedded"
ttl = "24h"
stale_if_error = "1h"
max_entry = "1MiB"
local = "64MiB"
store = "all"

[auth]
mode = "keys"
admin_keys = ["{HASH}"]

[[tenant]]
name = "acme"
keys = ["{HASH}"]
requests_per_minute = 600
tokens_per_minute = 200000

[[model]]
name = "llama"
aliases = ["meta-llama/Llama-3.1-8B-Instruct"]
revision = "2024-07"
auto = ["chat", "code"]
fallback = "phi"

[[model]]
name = "phi"

[[engine]]
name = "llama-chat"
model = "llama"
task = "chat"
url = "http://127.0.0.1:8001"
served_model = "meta-llama/Llama-3.1-8B-Instruct"
max_model_len = 8192
max_in_flight = 256

[engine.launch]
target = "meta-llama/Llama-3.1-8B-Instruct"
draft = "Qwen/Qwen2.5-1.5B-Instruct"
num_speculative_tokens = 4
gpus = [0]

[[engine]]
name = "phi"
model = "phi"
urls = ["http://127.0.0.1:8002/", "https://phi.example"]

[breaker]
open_above = 0.88
close_below = 0.79
failures = 5
cooldown = "10s"

[timeouts]
connect = "5s"
first_token = "30s"
between_tokens = "15s"
min_tokens_per_second = 10
"""
"""Every setting in the design, and its second model."""


def test_every_setting_of_the_design_is_read() -> None:
    settings = parse_config(DESIGNED)
    assert settings.model[0].auto == ["chat", "code"]
    assert settings.tenant[0].tokens_per_minute == 200000
    launch = settings.engine[0].launch
    assert launch is not None
    assert (launch.draft, launch.num_speculative_tokens, launch.gpus) == ("Qwen/Qwen2.5-1.5B-Instruct", 4, [0])
    assert settings.engine[1].addresses == ["http://127.0.0.1:8002", "https://phi.example"]
    assert float(settings.breaker.cooldown) == 10


@pytest.mark.parametrize("name", ["roundhouse.toml", "engines/tiny/roundhouse.toml"])
def test_the_configurations_of_this_project_are_valid(name: str) -> None:
    settings = load(ROOT / name, {})
    assert [engine.name for engine in settings.engine] == ["llama-chat", "llama-code", "mistral"]
    assert all(engine.launch is not None and engine.launch.draft for engine in settings.engine)


# Durations and sizes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ('"500ms"', 0.5),
        ('"10s"', 10),
        ('"5m"', 300),
        ('"24h"', 86400),
        ('"7d"', 604800),
        ('"1.5 h"', 5400),
        ("0", 0),
        ('"0"', 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    parsed = parse_config(f"[cache]\nstale_if_error = {text}\n{MINIMAL}").cache.stale_if_error
    assert parsed == pytest.approx(seconds)
    assert isinstance(parsed, Seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('"64KiB"', 65536),
        ('"4MiB"', 4 << 20),
        ('"1GB"', 10**9),
        ('"1.5GiB"', 3 << 29),
        ('"9 B"', 9),
        ("0", 0),
        ("0.0", 0),
        ('"0"', 0),
        ('"${NOTHING:-0}"', 0),
    ],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    parsed = parse_config(f"[cache]\nlocal = {text}\n{MINIMAL}").cache.local
    assert parsed == size
    assert isinstance(parsed, Bytes)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("ttl", 'is not a duration; write a number and one of ms, s, m, h, d, as in "10s"'),
        ("local", 'is not a size; write a number and one of B, KiB, MiB, GiB, kB, MB, GB, as in "4MiB"'),
    ],
)
@pytest.mark.parametrize(
    "text", ['"10"', "10", '"s"', '""', '"-1s"', '"1 parsec"', "true", "[]", "1.5", '"1s "', '"1e3s"', '"1S"', "nan"]
)
def test_an_invalid_quantity_is_reported_with_an_example(name: str, problem: str, text: str) -> None:
    message = config_error(f"[cache]\n{name} = {text}\n{MINIMAL}")
    quoted = "a list" if text == "[]" else text.replace('"', "'")
    assert message == f"cache.{name}: {quoted} {problem}"


@pytest.mark.parametrize(
    ("name", "unit", "message"),
    [
        ("ttl", "d", "is too long; the maximum is 10^12 s"),
        ("local", "GiB", "is too large; the maximum is 10^12 B"),
    ],
)
def test_a_quantity_beyond_any_clock_or_machine_is_refused(name: str, unit: str, message: str) -> None:
    amount = f"{'9' * 13}{unit}"
    assert config_error(f'[cache]\n{name} = "{amount}"\n{MINIMAL}') == f"cache.{name}: '{amount}' {message}"
    assert config_error(f'[cache]\n{name} = "{"9" * 400}{unit}"\n{MINIMAL}') == f"cache.{name} {message}"


# The environment


def test_a_variable_comes_from_the_environment() -> None:
    text = MINIMAL.replace("127.0.0.1:8001", "${HOST}:${PORT}")
    assert parse_config(text, HOST="10.0.0.1", PORT="9").engine[0].url == "http://10.0.0.1:9"


@pytest.mark.parametrize(
    ("written", "environment", "found"),
    [
        ("${V}", {"V": "x"}, "x"),
        ("${V}", {"V": ""}, ""),
        ("a${V}b${V}c", {"V": "x"}, "axbxc"),
        ("${V:-d}", {}, "d"),
        ("${V:-d}", {"V": ""}, "d"),
        ("${V:-d}", {"V": "x"}, "x"),
        ("${V:-}", {}, ""),
        ("${V:-a:-b}", {}, "a:-b"),
        ("$V", {"V": "x"}, "$V"),
        ("${}", {}, "${}"),
        ("${1}", {}, "${1}"),
        ("${V}", {"V": "${W}", "W": "x"}, "${W}"),
    ],
)
def test_a_variable_is_substituted_as_in_a_shell(written: str, environment: dict[str, str], found: str) -> None:
    settings = parse(f'{MODEL}revision = "{written}"\n{ENGINE}', environment)
    assert settings.model[0].revision == found


def test_a_missing_variable_is_reported_by_its_place_and_name() -> None:
    assert config_error(f'{MODEL}aliases = ["a", "${{NOWHERE}}"]\n{ENGINE}') == (
        "model[0].aliases[1]: environment variable NOWHERE is not set; set it, or write ${NOWHERE:-…} with a default"
    )


def test_a_variable_can_hold_a_quantity() -> None:
    assert parse_config(f'[cache]\nttl = "${{TTL}}"\n{MINIMAL}', TTL="5m").cache.ttl == Seconds(300)


def test_the_environment_of_the_process_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUNDHOUSE_TEST_REVISION", "r7")
    path = tmp_path / "x.toml"
    path.write_text(f'{MODEL}revision = "${{ROUNDHOUSE_TEST_REVISION}}"\n{ENGINE}')
    assert load(path).model[0].revision == "r7"


# Derived settings


@pytest.mark.parametrize(
    ("mode", "names", "found"),
    [
        ("open", [], ["default"]),
        ("open", ["acme"], ["default", "acme"]),
        ("open", ["acme", "default"], ["acme", "default"]),
        ("keys", ["acme"], ["acme"]),
        ("header", ["acme", "other"], ["acme", "other"]),
    ],
)
def test_the_tenants_are_those_of_the_file_and_the_default_one_in_open_mode(
    mode: str, names: list[str], found: list[str]
) -> None:
    tables = "".join(f'[[tenant]]\nname = "{name}"\n' for name in names)
    if mode == "keys":
        tables += f'keys = ["{OTHER_HASH}"]\n'
    assert tenants(parse_config(f'[auth]\nmode = "{mode}"\n{tables}{MINIMAL}')) == found


def test_the_private_redis_listens_in_the_state_folder(tmp_path: Path) -> None:
    settings = parse_config(f'[router]\nstate = "{tmp_path}/s"\n{MINIMAL}')
    assert settings.redis_socket == tmp_path / "s" / "redis.sock"
    assert settings.redis_url == f"unix://{tmp_path}/s/redis.sock"


def test_the_socket_of_a_deep_state_folder_still_has_a_path_that_the_kernel_accepts(tmp_path: Path) -> None:
    deep = [parse_config(f'[router]\nstate = "{tmp_path}/{"x" * 120}{n}"\n{MINIMAL}').redis_socket for n in range(2)]
    assert all(len(str(path)) <= 100 for path in deep)
    assert deep[0] != deep[1]


def test_another_redis_is_used_by_its_own_url() -> None:
    for url in ("redis://h:1/2", "rediss://h", "unix:///tmp/x.sock"):
        assert parse_config(f'[cache]\nurl = "{url}"\n{MINIMAL}').redis_url == url
