"""Opens a Tracer that exports over OTLP. OpenTelemetry is imported here, and only if tracing is on."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from router.build_info import build_version
from router.settings import ConfigurationError, Settings, TracingSettings, missing_extra
from router.telemetry.tracing.export_queue import EXPORT_INTERVAL, ExportQueue
from router.telemetry.tracing.tracer import Tracer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

OpenExporter = Callable[[TracingSettings], "SpanExporter"]
OnDropped = Callable[[str, int], None]

SWITCH_INTERVAL: Final = 0.0005
"""Seconds that the event loop waits at most until the thread that exports gives it Python's lock.

With Python's 5 ms, a hundredth of all hits took 2 ms longer while batches were encoded, and a thousandth 10 ms.
"""

_TRACES_PATH: Final = "/v1/traces"


def open_tracer(
    settings: Settings, on_dropped: OnDropped, open_exporter: OpenExporter | None = None, old: Tracer | None = None
) -> Tracer | None:
    """None if tracing is off; `old` if that has the same settings. Raises ConfigurationError if a package is missing.

    `on_dropped`: see ExportQueue. `open_exporter`: None for the collector of the settings.
    """
    if not settings.tracing.enabled:
        return None
    if old is not None and old.settings == settings.tracing:
        return old.share()
    if (problem := missing_extra(settings)) is not None:
        raise ConfigurationError(problem)
    return _open(settings.tracing, on_dropped, open_exporter or open_otlp_exporter)


def _open(tracing: TracingSettings, on_dropped: OnDropped, open_exporter: OpenExporter) -> Tracer:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    from router.telemetry.tracing.spans import SpanMaker

    # It logs each `tracestate` of a client that it does not take; the span has none then.
    logging.getLogger("opentelemetry.trace.span").setLevel(logging.CRITICAL)
    name = tracing.service_name or os.environ.get("OTEL_SERVICE_NAME") or "roundhouse"
    release, host = build_version(), socket.gethostname()
    # With OTEL_RESOURCE_ATTRIBUTES, which these take precedence over.
    resource = Resource.create({
        "service.name": name, "service.version": release, "service.instance.id": f"{host}:{os.getpid()}",
        "host.name": host, "process.pid": os.getpid(),
    })  # fmt: skip
    sys.setswitchinterval(min(SWITCH_INTERVAL, sys.getswitchinterval()))
    exporter, maker = open_exporter(tracing), SpanMaker(resource, release)

    def export(items: Sequence[object]) -> bool:
        return exporter.export(maker.make(items)) is SpanExportResult.SUCCESS

    queue = ExportQueue(
        export, exporter.shutdown, on_dropped=on_dropped, collector=_origin(tracing), interval=EXPORT_INTERVAL
    )
    return Tracer(queue, tracing)


def open_otlp_exporter(tracing: TracingSettings) -> "SpanExporter":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # It logs every failure; ExportQueue logs the first one.
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=traces_url(tracing.endpoint or ""), headers=tracing.headers or None)


def traces_url(endpoint: str) -> str:
    """Where traces are sent. As with OTEL_EXPORTER_OTLP_ENDPOINT, a path is a prefix; that of traces may be given."""
    base = endpoint.rstrip("/")
    return base if base.endswith(_TRACES_PATH) else base + _TRACES_PATH


def _origin(tracing: TracingSettings) -> str:
    # Without a path, which is a secret at some providers.
    scheme, _, rest = (tracing.endpoint or "").partition("://")
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}"
