"""An OpenTelemetry collector that keeps the spans it receives over OTLP/HTTP, for tests."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

KINDS = {1: "internal", 2: "server", 3: "client"}


class ReceivedSpan:
    """A span with its ids in hexadecimal, and the attributes of its resource in `resource`."""

    def __init__(self, span: Span, resource: dict[str, Any]) -> None:
        self.name = span.name
        self.kind = KINDS[span.kind]
        self.trace_id, self.span_id = span.trace_id.hex(), span.span_id.hex()
        self.parent_id = span.parent_span_id.hex()
        self.trace_state = span.trace_state
        self.start, self.end = span.start_time_unix_nano, span.end_time_unix_nano
        self.failed = span.status.code == 2
        self.attributes = _plain(span.attributes)
        self.events = {event.name: event.time_unix_nano for event in span.events}
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.resource = resource

    def __repr__(self) -> str:
        return f"ReceivedSpan({self.name!r}, {self.kind}, {self.attributes})"


def _plain(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


class Collector:
    """Listens at `url`. With another `status` than 200, it refuses what it receives."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[ReceivedSpan] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.status = 200
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.receive(self.path, dict(self.headers.items()), body)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name of the base class
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def receive(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.paths.append(path)
        self.headers.append({name.lower(): value for name, value in headers.items()})
        if self.status != 200:
            return
        for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                self.spans += [ReceivedSpan(span, resource) for span in scope_spans.spans]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
