"""The access log: one line for every request, as text or JSON.

No line contains prompts, responses, keys or other personal data.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from router.core.routing.classify import probability_of_code
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.request_kind import RequestKind
from router.flow.request_times import generation_times, milliseconds_text, tried_engines
from router.telemetry.access_line import LineTemplate, line_template
from router.telemetry.log_output import ACCESS_LOGGER, BatchingHandler, JsonFormatter, encode_json

log = logging.getLogger(ACCESS_LOGGER)


class AccessLog:
    """Writes one line for each request: its facts as `name=value`, or as a JSON object.

    Most of a line is the same for all requests of a kind, so a template is built once for each kind.
    """

    def __init__(self, log_format: str) -> None:
        self._as_json = log_format == "json"
        self._sink: Callable[[str], None] | None = None

    def line_template(self, kind: RequestKind) -> LineTemplate:
        return line_template(kind, as_json=self._as_json)

    def write(self, template: LineTemplate, exchange: Exchange, duration: float) -> None:
        """`duration` in seconds."""
        if not log.isEnabledFor(logging.INFO):
            return
        if self._sink is None:
            # Only now: logging may be set up after this object is created.
            self._sink = self._find_sink()
        first_token, generation = exchange.first_token_at, exchange.generation
        # A hit has the shorter tuple, since each value costs time.
        classified = () if generation is None else self._values_of(exchange, generation, exchange.started_at + duration)
        self._sink(
            template
            % (
                exchange.request_id, 1000 * duration, *classified, exchange.prompt_tokens, exchange.completion_tokens,
                exchange.engine_request_id, "" if first_token is None else 1000 * (first_token - exchange.started_at),
                1000 * exchange.lookup_seconds, exchange.trace_id, exchange.key,
            )
        )  # fmt: skip

    def _values_of(self, exchange: Exchange, generation: GenerationRecord, ended_at: float) -> tuple[Any, ...]:
        estimate = generation.placement.estimate
        tried = tried_engines(generation, exchange.outcome)
        times = ""
        if self._as_json:
            for name, value in generation_times(exchange, generation, ended_at):
                times += f',"{name}":{milliseconds_text(value)}'
            if tried:
                times += f',"tried":{encode_json(tried)}'
        else:
            for name, value in generation_times(exchange, generation, ended_at):
                times += f" {name}={milliseconds_text(value)}"
            if tried:
                times += f" tried={tried}"
        return (
            probability_of_code(generation.origin.log_odds),
            len(generation.attempts),
            generation.continued if generation.continuations else "",
            *(("", "") if estimate is None else (estimate.cached_share, 1000 * estimate.ttft)),
            times,
        )

    def _find_sink(self) -> Callable[[str], None]:
        """The handler of set_up_logging if there is one, else the logger itself, as in tests and other programs."""
        handlers = logging.getLogger("roundhouse").handlers
        sink = next((handler.write_access_line for handler in handlers if isinstance(handler, BatchingHandler)), None)
        if sink is None and self._as_json:
            line_time = JsonFormatter().time
            return lambda line: log.info("%s%s", line_time.line_prefix(time.time()), line)
        return sink or log.info
