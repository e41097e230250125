"""Settings from the environment: numbers and booleans in `${VAR}`, ROUNDHOUSE_… variables, and options of a command."""

import pytest

from router.net.redis.url import find_url_problems
from router.settings import Override, parse
from router.settings.units import Bytes, Seconds
from tests.support.configurations import MINIMAL, config_error, mistakes, parse_config

# Numbers and booleans in the file


@pytest.mark.parametrize(("environment", "port"), [({}, 8080), ({"PORT": ""}, 8080), ({"PORT": "9000"}, 9000)])
def test_a_number_may_come_from_a_variable_or_its_default(environment: dict[str, str], port: int) -> None:
    assert parse(f'[router]\nport = "${{PORT:-8080}}"\n{MINIMAL}', environment).router.port == port


def test_fractions_booleans_and_quantities_may_come_from_variables() -> None:
    text = '[router]\nlog_prompts = "${SHARE}"\n[watchdog]\nenabled = "${WATCH:-false}"\n[cache]\nlocal = "${LOCAL}"\n'
    settings = parse_config(f"{text}{MINIMAL}", SHARE="0.5", LOCAL="1MiB")
    assert settings.router.log_prompts == 0.5
    assert settings.watchdog.enabled is False
    assert settings.cache.local == Bytes(1 << 20)


def test_numbers_of_tables_that_are_repeated_may_come_from_variables() -> None:
    text = MINIMAL + 'max_in_flight = "${SLOTS}"\nends_without_done = "${DONE}"\n'
    engine = parse_config(text, SLOTS="7", DONE="true").engine[0]
    assert (engine.max_in_flight, engine.ends_without_done) == (7, True)


@pytest.mark.parametrize("number", ["8080", "0x50", "1_000"])
def test_a_text_stays_a_text(number: str) -> None:
    assert parse_config(f'[[model]]\nname = "llama"\nrevision = "${{V}}"\n{MINIMAL[24:]}', V=number).model[
        0
    ].revision == (number)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ('port = "${V}"', "router.port: '${V}' is not an integer from 1 to 65535; set V to one"),
        ('port = "${V:-x}"', "router.port: '${V:-x}' is not an integer from 1 to 65535; set V to one"),
        (
            'explore = "0${V}"',
            "router.explore: '0${V}' is not a number from 0 to 1; write one ${VAR} without other text",
        ),
        ('port = "8080"', "router.port: '8080' is not an integer from 1 to 65535; write numbers without quotes"),
        ('log_prompts = "${V}"', "router.log_prompts: '${V}' is not a number from 0 to 1; set V to one"),
        ("host = 1", "router.host: 1 is not a string; write it in quotes"),
    ],
)  # fmt: skip
def test_a_variable_with_another_value_is_named_and_its_value_is_not_shown(written: str, problem: str) -> None:
    assert config_error(f"[router]\n{written}\n{MINIMAL}", V="hunter2") == problem


def test_a_boolean_that_is_none_is_named_by_its_variable() -> None:
    text = f'[watchdog]\nenabled = "${{WATCH}}"\n{MINIMAL}'
    assert config_error(text, WATCH="yes") == "watchdog.enabled: '${WATCH}' is not true or false; set WATCH to one"


@pytest.mark.parametrize("value", ["nan", "inf", "1e9", "-1", "0", "65536"])
def test_a_number_from_a_variable_has_the_same_limits(value: str) -> None:
    assert "is not an integer from 1 to 65535" in config_error(f'[router]\nport = "${{P}}"\n{MINIMAL}', P=value)


# ROUNDHOUSE_…


def test_a_variable_of_its_name_sets_a_setting_of_a_table_that_exists_once() -> None:
    settings = parse_config(
        f'[router]\nport = 1\nhost = "::"\n[watchdog]\nenabled = true\n{MINIMAL}',
        ROUNDHOUSE_ROUTER_PORT="9000", ROUNDHOUSE_ROUTER_LOG_FORMAT="json", ROUNDHOUSE_CACHE_URL="redis://h/1",
        ROUNDHOUSE_CACHE_TTL="5m", ROUNDHOUSE_WATCHDOG_ENABLED="0", ROUNDHOUSE_BREAKER_OPEN_ABOVE="0.9",
        ROUNDHOUSE_TRACING_ENDPOINT="",
    )  # fmt: skip
    assert (settings.router.port, settings.router.host, settings.router.log_format) == (9000, "::", "json")
    assert (settings.cache.url, settings.cache.ttl) == ("redis://h/1", Seconds(300))
    assert settings.watchdog.enabled is False
    assert settings.breaker.open_above == 0.9
    assert settings.tracing.endpoint is None


def test_bytes_that_are_no_text_are_a_mistake_whatever_the_setting() -> None:
    no_text = "\udcff"  # as os.environ has the byte FF
    assert mistakes(MINIMAL, ROUNDHOUSE_ROUTER_PORT=no_text, ROUNDHOUSE_CACHE_URL=no_text) == (
        "ROUNDHOUSE_CACHE_URL: cache.url is not UTF-8 text",
        "ROUNDHOUSE_ROUTER_PORT: router.port is not UTF-8 text",
    )
    text = f'[router]\nport = "${{V}}"\nhost = "${{V}}"\n{MINIMAL}'
    assert mistakes(text, V=no_text) == ("router.port is not UTF-8 text", "router.host is not UTF-8 text")


def test_a_variable_repairs_a_value_of_the_file_and_is_not_a_template() -> None:
    settings = parse_config(f"[router]\nport = 'x'\n{MINIMAL}", ROUNDHOUSE_ROUTER_PORT="9000", STATE="s")
    assert settings.router.port == 9000
    assert parse_config(MINIMAL, ROUNDHOUSE_ROUTER_STATE="${STATE}", STATE="s").router.state == "${STATE}"


def test_what_is_wrong_with_a_variable_names_it_and_shows_no_value() -> None:
    assert mistakes(
        f'[auth]\nmode = "key"\n{MINIMAL}', ROUNDHOUSE_ROUTER_PORT="hunter2", ROUNDHOUSE_CACHE_URL="foo://hunter2",
        ROUNDHOUSE_ROUTER_PROT="1", ROUNDHOUSE_AUTH_ADMIN_KEYS="sha256:0",
    ) == (
        "ROUNDHOUSE_AUTH_ADMIN_KEYS: auth.admin_keys has several values; set it in the file",
        "ROUNDHOUSE_ROUTER_PROT: no such setting; did you mean ROUNDHOUSE_ROUTER_PORT?",
        "auth.mode: 'key' is none of open, keys, header",
        "ROUNDHOUSE_ROUTER_PORT: router.port is not an integer from 1 to 65535",
        f"ROUNDHOUSE_CACHE_URL: cache.url: {find_url_problems('foo://')[0]}",
    )  # fmt: skip


def test_variables_that_are_no_settings_are_ignored() -> None:
    environment = dict.fromkeys(
        ("ROUNDHOUSE_MODELS", "ROUNDHOUSE_COMPILE", "ROUNDHOUSE_ADMIN_KEY", "ROUNDHOUSE_X"), "1"
    )
    assert parse(MINIMAL, environment) == parse(MINIMAL, {})


def test_what_kubernetes_sets_for_services_of_these_names_is_ignored() -> None:
    environment = {
        "ROUNDHOUSE_ROUTER_SERVICE_HOST": "10.0.0.1",
        "ROUNDHOUSE_ROUTER_SERVICE_PORT": "8080",
        "ROUNDHOUSE_ROUTER_SERVICE_PORT_HTTP": "8080",
        "ROUNDHOUSE_ROUTER_PORT": "tcp://10.0.0.1:8080",
        "ROUNDHOUSE_ROUTER_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "ROUNDHOUSE_ROUTER_PORT_8080_TCP_ADDR": "10.0.0.1",
        "ROUNDHOUSE_CACHE_PORT": "tcp://10.0.0.2:6379",
    }
    assert parse(MINIMAL, environment) == parse(MINIMAL, {})


# Options of a command


def test_an_option_counts_more_than_a_variable_and_a_variable_more_than_the_file() -> None:
    text, environment = f"[router]\nport = 1\nworkers = 3\n{MINIMAL}", {"ROUNDHOUSE_ROUTER_PORT": "2"}
    option = Override(("router", "port"), "3", "--port")
    assert parse(text, environment).router.port == 2
    assert (parse(text, environment, [option]).router.port, parse(text, {}, [option]).router.workers) == (3, 3)


def test_what_is_wrong_with_an_option_names_it() -> None:
    with pytest.raises(Exception, match=r"^--redis: cache\.url: ") as caught:
        parse(MINIMAL, {}, [Override(("cache", "url"), "foo://hunter2", "--redis")], source="file")
    assert "hunter2" not in str(caught.value)
