"""Asks the collector of traces whether it is there."""

from typing import Final

from router.checks.finding import Finding, Problem, wrong
from router.checks.pages import explain_failure, get_page
from router.checks.words import Fixes
from router.net.client.errors import EngineError
from router.net.client.target import RequestTarget
from router.net.client.transport import HTTPTransport
from router.settings import TracingSettings
from router.telemetry.tracing.otlp import traces_url

_SETTING: Final = "tracing.endpoint"
_REFUSED: Final = (401, 403)
_NOT_FOUND: Final = 404
_FIXES: Final = Fixes(
    start="start the collector, or correct the URL",
    correct_host="correct the host of the URL",
    without_tls="write http:// in place of https://",
    trust="set OTEL_EXPORTER_OTLP_CERTIFICATE to its authority's certificate",
    client_certificate="set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and _CLIENT_KEY",
)


async def check_collector(transport: HTTPTransport, tracing: TracingSettings, *, timeout: float) -> list[Finding]:
    """`timeout` in seconds. Sends no trace: a GET, which a collector answers with 405."""
    if not tracing.enabled:
        return []
    what = "traces"  # the path of the URL is a secret at some providers
    target = RequestTarget(traces_url(tracing.endpoint or ""), "", headers=tracing.headers)
    try:
        status, _ = await get_page(transport, target, timeout=timeout)
    except EngineError as error:
        problem = explain_failure(error, _FIXES, timeout=timeout)
        return [wrong(what, _SETTING, problem._replace(note=f"the collector: {problem.note}"), "warning")]
    if status in _REFUSED:
        problem = Problem(f"the collector refuses the router with status {status}", "correct its key")
        return [wrong(what, "tracing.headers", problem, "warning")]
    if status == _NOT_FOUND:
        problem = Problem("the collector takes no OTLP over HTTP there (status 404)", "correct the port and path")
        return [wrong(what, _SETTING, problem, "warning")]
    return [Finding(what, "the collector answers")]
