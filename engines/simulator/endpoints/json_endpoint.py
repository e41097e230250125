"""Endpoints that answer with one JSON object, whose content is a function of the request: scores, classes, tokens."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engines.simulator.control.faults import FaultPlan, FaultRegistry
from engines.simulator.control.generation_log import GenerationLog
from engines.simulator.control.request_log import RequestLog
from engines.simulator.counters import EngineCounters, SequenceTimes
from engines.simulator.endpoints.adapters import AdapterRegistry
from engines.simulator.endpoints.endpoint import SimulatorEndpoint, apply_fault, drop_before_headers
from engines.simulator.engine.core import EngineFailedError
from engines.simulator.rejections import Rejection, engine_failed
from engines.simulator.settings import SimulatorSettings
from engines.simulator.validation.fields import Body
from engines.simulator.wire import ConnectionDroppedError, ResponseWriter

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """One accepted request.

    - `text`: everything the client wrote, in which markers are searched.
    - `sequences`: the number of tokens of each sequence for the model; none if only the tokenizer answers.
    - `make_body`: the response, from the request's headers and the time in seconds since the epoch.
    """

    text: str
    sequences: tuple[int, ...]
    make_body: Callable[[Headers, float], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class JsonApi:
    """One endpoint. `parse` raises Rejection with vLLM's error, whose body is `error_body`."""

    path: str
    parse: Callable[[Body, SimulatorSettings], JsonRequest]
    error_body: Callable[[Rejection], object] = lambda rejection: rejection.body


class JsonEndpoint(SimulatorEndpoint[JsonRequest]):
    """An ASGI app for one of these endpoints. `clock` gives monotonic seconds, `now` seconds since the epoch."""

    def __init__(
        self, api: JsonApi, adapters: AdapterRegistry, counters: EngineCounters, fault_registry: FaultRegistry,
        request_log: RequestLog, generation_log: GenerationLog | None, clock: Callable[[], float],
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__(fault_registry, request_log, generation_log)
        self._api = api
        self._adapters = adapters
        self._counters = counters
        self._clock = clock
        self._now = now

    def _parse_request(self, body: Body) -> JsonRequest:
        return self._api.parse(body, self._adapters.settings_for(body.get("model")))

    def _error_body(self, rejection: Rejection) -> object:
        return self._api.error_body(rejection)

    async def _answer(self, request: JsonRequest, plan: FaultPlan, writer: ResponseWriter, headers: Headers) -> None:
        times = SequenceTimes(arrived=self._clock())
        try:
            with self._request_log.track_generation():
                drop_before_headers(plan)
                await asyncio.sleep(plan.ttft or 0)
                await apply_fault(plan, 0, writer)
                body = request.make_body(headers, self._now())
                for count in request.sequences:
                    self._counters.record_pooled(count, times, self._clock())
                await writer.send_json(200, b'{"data":[{' if plan.malformed else body)
        except ConnectionDroppedError:
            await writer.drop(reset=plan.drop_reset)
        except EngineFailedError as failure:
            rejection = engine_failed(str(failure), failure.code)
            await writer.send_error(rejection, self._error_body(rejection))
