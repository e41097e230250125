"""The spans of a router that exports them to memory, for tests."""

from collections.abc import Callable

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tests.support.waiting import eventually

TRACING = '[tracing]\nendpoint = "http://127.0.0.1:4318"\n'
"""A configuration with tracing on; with a RecordedSpans, nothing is sent there."""


class RecordedSpans:
    """`exporter` takes the spans; the methods return them once they are there."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    async def requests(self, count: int) -> list[ReadableSpan]:
        """The spans of this many requests, in the order of their start."""
        return await self.of_kind(SpanKind.SERVER, count)

    async def attempts(self, count: int) -> list[ReadableSpan]:
        return await self.of_kind(SpanKind.CLIENT, count)

    async def named(self, name: str, count: int = 1) -> list[ReadableSpan]:
        return await self._wait(lambda span: span.name == name, count)

    async def of_kind(self, kind: SpanKind, count: int) -> list[ReadableSpan]:
        return await self._wait(lambda span: span.kind is kind, count)

    async def _wait(self, matches: Callable[[ReadableSpan], bool], count: int) -> list[ReadableSpan]:
        await eventually(lambda: len(list(filter(matches, self.all))) >= count)
        found = sorted(filter(matches, self.all), key=lambda span: span.start_time or 0)
        assert len(found) == count, found
        return found
