"""Where KV events are read, in the configuration."""

from unittest.mock import patch

import pytest

from router.settings import missing_extra
from router.upstream.kv_feeds import KvFeed, configured_feeds
from tests.support.configurations import MODEL, config_error, parse_config

URL = 'url = "http://10.0.0.1:8000"'
URLS = 'urls = ["http://10.0.0.1:8000", "http://[fd00::2]:8000"]'


def engine(*settings: str, router: str = "") -> str:
    lines = "\n".join(settings)
    return f'{router}{MODEL}[[engine]]\nname = "e"\nmodel = "llama"\n{lines}\n'


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (['kv_events = "h:5557"'],
         "engine[0].kv_events: 'h:5557' is not an endpoint of ZMQ such as tcp://127.0.0.1:5557 or ipc:///run/llama.kv"),
        (['kv_events_replay = "tcp://h:5558"'],
         "engine[0].kv_events_replay: 'tcp://h:5558' needs kv_events; set it, too"),
        (['kv_events = "tcp://h:5557"', 'kv_events_replay = "tcp://*:5558"'],
         "engine[0].kv_events_replay: 'tcp://*:5558' must have the engine's host: vLLM always binds it"),
    ],
)  # fmt: skip
def test_endpoints_that_cannot_be_read_are_mistakes(settings: list[str], message: str) -> None:
    assert config_error(engine(URL, *settings)) == message


def test_replicas_need_the_host_of_each_in_their_endpoint() -> None:
    assert config_error(engine(URLS, 'kv_events = "tcp://10.0.0.1:5557"')) == (
        "engine[0].kv_events: 'tcp://10.0.0.1:5557' must have {host} in place of the host, since each of the urls "
        "publishes its own events"
    )


def test_each_replica_needs_an_endpoint_of_its_own() -> None:
    ports = 'urls = ["http://gpu:8000", "http://gpu:8001"]'
    assert config_error(engine(ports, 'kv_events = "tcp://{host}:5557"')) == (
        "engine[0].kv_events: 'tcp://{host}:5557' is where e.1 and e.2 publish (tcp://gpu:5557); each needs an "
        "endpoint of its own"
    )
    other = '[[engine]]\nname = "f"\nmodel = "llama"\nurl = "http://127.0.0.1:8001"\nkv_events = "tcp://*:5557"\n'
    assert config_error(engine(URL, 'kv_events = "tcp://*:5557"') + other) == (
        "engine[1].kv_events: 'tcp://*:5557' is where e and f publish (tcp://*:5557); each needs an endpoint of its own"
    )


def test_only_one_process_can_bind() -> None:
    of_two = "[router]\nworkers = 2\n"
    assert config_error(engine(URL, 'kv_events = "tcp://*:5557"', router=of_two)) == (
        "engine[0].kv_events: 'tcp://*:5557' makes the router bind, which only one process can; start the engine with "
        "a `*` in its own endpoint, and write its host here"
    )
    parse_config(engine(URL, 'kv_events = "tcp://*:5557"'))
    parse_config(engine(URL, 'kv_events = "tcp://10.0.0.1:5557"', router=of_two))


def test_each_replica_publishes_at_its_host() -> None:
    text = engine(URLS, 'kv_events = "tcp://{host}:5557"', 'kv_events_replay = "tcp://{host}:5558"')
    assert configured_feeds(parse_config(text)) == [
        KvFeed("e.1", "http://10.0.0.1:8000", "llama", "tcp://10.0.0.1:5557", "tcp://10.0.0.1:5558"),
        KvFeed("e.2", "http://[fd00::2]:8000", "llama", "tcp://[fd00::2]:5557", "tcp://[fd00::2]:5558"),
    ]
    assert configured_feeds(parse_config(engine(URLS))) == []


def test_each_rank_publishes_at_a_port_of_its_own() -> None:
    text = engine(URL, "data_parallel = 3", 'kv_events = "tcp://10.0.0.1:5557"', 'kv_events_replay = "tcp://h:5600"')
    assert [
        (feed.name, feed.replica, feed.endpoint[-4:], feed.replay_endpoint)
        for feed in configured_feeds(parse_config(text))
    ] == [
        ("e.1", "http://10.0.0.1:8000#0", "5557", "tcp://h:5600"),
        ("e.2", "http://10.0.0.1:8000#1", "5558", "tcp://h:5601"),
        ("e.3", "http://10.0.0.1:8000#2", "5559", "tcp://h:5602"),
    ]


def test_ranks_need_endpoints_with_ports_and_an_engine_that_is_started_elsewhere() -> None:
    assert config_error(engine(URL, "data_parallel = 2", 'kv_events = "ipc:///run/kv"')) == (
        "engine[0].kv_events: 'ipc:///run/kv' must be of tcp: vLLM adds the rank to the port, and does not start with "
        "ipc"
    )
    assert config_error(engine(URL, "data_parallel = 2", "[engine.launch]", 'target = "m"')) == (
        "engine[0].data_parallel: 2 cannot be combined with [engine.launch]: roundhouse starts no engine with several "
        "ranks"
    )
    assert (
        config_error(engine(URL, "data_parallel = 0")) == "engine[0].data_parallel: 0 is not an integer from 1 to 1024"
    )
    assert config_error(engine(URL, "data_parallel = 2", 'headers = { X-Data-Parallel-Rank = "1" }')) == (
        "engine[0].headers.X-Data-Parallel-Rank: is a header that the router sets itself; remove it"
    )


def test_pyzmq_is_needed_only_where_events_are_read() -> None:
    with patch("importlib.util.find_spec", lambda _: None):
        assert missing_extra(parse_config(engine(URL))) is None
        assert missing_extra(parse_config(engine(URL, 'kv_events = "ipc:///run/kv"'))) == (
            "engine.kv_events: needs pyzmq; pip install 'roundhouse-router[kv-events]'"
        )
