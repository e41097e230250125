"""The start of tracing: its address, its service name, what it imports, and what is said if a package is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from router.core.endpoints.chat import CHAT
from router.flow.exchange import Exchange
from router.settings import parse
from router.telemetry.tracing.otlp import SWITCH_INTERVAL, open_tracer, traces_url
from tests.support.cli_helpers import run_cli
from tests.support.configurations import MINIMAL, config_error, parse_config
from tests.support.ports import free_port

pytestmark = pytest.mark.usefixtures("traced_process")

ON = '[tracing]\nendpoint = "http://127.0.0.1:4318"\n'


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://example.com/otlp", "https://example.com/otlp/v1/traces"),
        ("https://example.com/v1/traces", "https://example.com/v1/traces"),
    ],
)
def test_the_path_of_traces_is_added_where_it_is_missing(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url


@pytest.mark.parametrize("text", ["", '[tracing]\nendpoint = ""\n', '[tracing]\nendpoint = "${NOT_SET:-}"\n'])
def test_tracing_is_off_without_an_endpoint(text: str) -> None:
    assert open_tracer(parse(text + MINIMAL, {}), lambda *_: None) is None


def service_name(text: str) -> object:
    exporter = InMemorySpanExporter()
    tracer = open_tracer(parse(text + MINIMAL, {}), lambda *_: None, lambda _: exporter)
    assert tracer is not None
    exchange = Exchange(endpoint=CHAT, request_id="r", started_at=0.0)
    tracer.start(exchange)
    exchange.trace.finish(exchange, 1.0)
    tracer.release()
    (span,) = exporter.get_finished_spans()
    assert span.name == "chat"  # its model is not known
    assert span.resource.attributes["service.version"]
    return span.resource.attributes["service.name"]


def test_the_service_name_is_that_of_the_settings_then_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_SERVICE_NAME", raising=False)
    assert service_name(ON) == "roundhouse"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    assert service_name(ON) == "edge"
    assert service_name(f'{ON}service_name = "inner"\n') == "inner"


def test_a_tracestate_that_opentelemetry_does_not_take_is_left_out_silently(caplog: pytest.LogCaptureFixture) -> None:
    exporter = InMemorySpanExporter()
    tracer = open_tracer(parse(ON + MINIMAL, {}), lambda *_: None, lambda _: exporter)
    assert tracer is not None
    # A key may begin with a digit since Level 2 of the recommendation.
    for tracestate in ("9=client", "a=1,a=2", "vendor=1"):
        exchange = Exchange(endpoint=CHAT, request_id="r", started_at=0.0, tracestate=tracestate)
        tracer.start(exchange)
        exchange.trace.finish(exchange, 1.0)
    tracer.release()
    states = [span.context.trace_state for span in exporter.get_finished_spans() if span.context is not None]
    assert [dict(state) for state in states] == [{}, {}, {"vendor": "1"}]
    assert not caplog.records


def test_the_event_loop_does_not_wait_for_the_thread_that_exports() -> None:
    assert sys.getswitchinterval() > SWITCH_INTERVAL
    tracer = open_tracer(parse(ON + MINIMAL, {}), lambda *_: None, lambda _: InMemorySpanExporter())
    assert tracer is not None
    tracer.release()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)


def test_a_header_is_never_shown_in_a_message() -> None:
    message = config_error(f'{ON}headers = {{ authorization = "s3cret\\n" }}\n{MINIMAL}')
    assert "tracing.headers.authorization" in message
    assert "s3cret" not in message
    assert "s3cret" not in config_error(f'{ON}headers = {{ "bad name" = "s3cret" }}\n{MINIMAL}')
    settings = parse_config(f'{ON}headers = {{ authorization = "${{TOKEN}}" }}\n{MINIMAL}', TOKEN="Bearer x")
    assert settings.tracing.headers == {"authorization": "Bearer x"}


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://h", "http://user:s3cret@h:4318"])
def test_an_endpoint_is_a_url_without_a_password(endpoint: str) -> None:
    message = config_error(f'[tracing]\nendpoint = "{endpoint}"\n{MINIMAL}')
    assert "tracing.endpoint" in message
    assert "s3cret" not in message


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    # redis-py imports parts of it for metrics of its own, where it is installed.
    program = (
        "import sys, redis.asyncio\nbefore = set(sys.modules)\n"
        "from router.settings import parse\nfrom router.process.app import build\nimport router.cli\n"
        f"build(parse({MINIMAL!r}, {{}}))\n"
        "print([name for name in set(sys.modules) - before if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["serve", "check", "up"])
async def test_a_missing_package_is_named_at_the_start(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a machine where only other packages of OpenTelemetry are.
    missing = "opentelemetry.exporter.otlp.proto.http"
    monkeypatch.setitem(sys.modules, missing, None)
    # Modules that another test has imported would be found without their package.
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    config = tmp_path / "roundhouse.toml"
    config.write_text(f'[router]\nport = {free_port()}\n[cache]\nurl = "redis://127.0.0.1:1"\n{ON}{MINIMAL}')
    done = await run_cli(command, "-c", config)
    assert done.code == 1
    shown = done.stdout + done.stderr
    assert "needs OpenTelemetry" in shown
    assert "pip install 'roundhouse-router[otel]'" in shown
    assert "tracing.endpoint: " in shown
