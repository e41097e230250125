"""Generates an answer and sends it, as events or as JSON."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from engines.simulator.control.faults import FaultPlan, FaultRegistry
from engines.simulator.control.generation_log import GenerationLog
from engines.simulator.control.request_log import RequestLog
from engines.simulator.endpoints.adapters import AdapterRegistry
from engines.simulator.endpoints.apis import GenerationApi
from engines.simulator.endpoints.endpoint import SimulatorEndpoint, apply_fault, drop_before_headers
from engines.simulator.engine.core import Delta, EngineCore, EngineFailedError
from engines.simulator.engine.ranks import Ranks
from engines.simulator.formats.argument_hold import ArgumentHold
from engines.simulator.formats.bodies import ChoiceAccumulator
from engines.simulator.formats.frames import Envelope
from engines.simulator.rejections import Rejection, engine_failed
from engines.simulator.text.prompts import Prompt
from engines.simulator.validation.fields import Body
from engines.simulator.validation.requests import GenerationRequest
from engines.simulator.wire import ConnectionDroppedError, ResponseWriter


class GenerationEndpoint(SimulatorEndpoint[GenerationRequest]):
    """An ASGI app for one generating endpoint. `now` gives Unix seconds."""

    def __init__(
        self,
        api: GenerationApi,
        ranks: Ranks,
        adapters: AdapterRegistry,
        fault_registry: FaultRegistry,
        request_log: RequestLog,
        generation_log: GenerationLog | None,
        now: Callable[[], float],
    ) -> None:
        super().__init__(fault_registry, request_log, generation_log)
        self._api = api
        self._ranks = ranks
        self._adapters = adapters
        self._now = now

    def _parse_request(self, body: Body) -> GenerationRequest:
        settings = self._adapters.settings_for(body.get("model"))
        return replace(self._api.parse_request(body, settings), served_name=settings.model_names[0])

    def _only_prompt(self, request: GenerationRequest) -> Prompt | None:
        return request.prompts[0] if len(request.prompts) == request.n == 1 else None

    def _error_body(self, rejection: Rejection) -> object:
        return self._api.error_body(rejection)

    async def _answer(
        self, request: GenerationRequest, plan: FaultPlan, writer: ResponseWriter, headers: dict[str, str]
    ) -> None:
        try:
            engine = self._ranks.choose(headers)
        except Rejection as rejection:
            if request.stream:  # vLLM finds it out when it begins to generate
                await writer.start_stream()
            await self._send_failure(request, rejection, plan, writer)
            return
        settings = engine.settings
        name = self._api.make_id(request, headers)
        envelope = Envelope(name, int(self._now()), request.served_name, settings.fingerprint)
        send = self._send_stream if request.stream else self._send_json
        try:
            with self._request_log.track_generation():
                await send(engine, request, plan, writer, envelope)
        except ConnectionDroppedError:
            await writer.drop(reset=plan.drop_reset)
        except EngineFailedError as failure:
            await self._send_failure(request, engine_failed(str(failure), failure.code), plan, writer)

    async def _send_failure(
        self, request: GenerationRequest, rejection: Rejection, plan: FaultPlan, writer: ResponseWriter
    ) -> None:
        # A JSON response can still report the error by its status; a stream has sent its status already.
        if not request.stream:
            await writer.send_error(rejection, self._error_body(rejection))
            return
        frame = self._api.stream_error(rejection)
        # vLLM breaks off the stream of this API without an error event.
        if frame is None:
            await writer.drop(reset=False)
            return
        await writer.write(frame)
        if plan.done and self._api.after_stream_error:
            await writer.write(self._api.after_stream_error)
        await writer.end()

    async def _send_stream(
        self, engine: EngineCore, request: GenerationRequest, plan: FaultPlan, writer: ResponseWriter,
        envelope: Envelope,
    ) -> None:  # fmt: skip
        frames = self._api.make_frames(request, envelope, finish=plan.finish)
        drop_before_headers(plan)
        # The head is sent before the first token, as vLLM does.
        await writer.start_stream()
        is_open, malform, padded_size, count = frames.opens_immediately, plan.malformed, plan.event_bytes, 0
        if is_open:
            for frame in frames.opening_frames():
                await writer.write(frame)
        hold = ArgumentHold() if plan.hold_arguments else None
        async with aclosing(self._deltas(engine, request, plan, writer)) as deltas:
            async for generated in deltas:
                delta = generated if hold is None else hold.feed(generated)
                if not is_open:
                    is_open = True
                    for frame in frames.opening_frames():
                        await writer.write(frame)
                for frame in frames.delta_frames(delta):
                    # Only the first event of the stream is malformed: half of it, but terminated as an event.
                    data = frame[: len(frame) // 2] + b"\n\n" if malform else frame
                    if padded_size and count >= plan.event_after:
                        data, padded_size = _padded(frame, padded_size), 0
                    await writer.write(data)
                    malform = False
                count += len(delta.tokens)
                self._request_log.record_tokens_sent(len(delta.tokens))
        for frame in frames.closing_frames():
            await writer.write(frame)
        if plan.done:
            await writer.write(frames.final_frame())
        await writer.end()

    async def _send_json(
        self, engine: EngineCore, request: GenerationRequest, plan: FaultPlan, writer: ResponseWriter,
        envelope: Envelope,
    ) -> None:  # fmt: skip
        drop_before_headers(plan)
        choices = [ChoiceAccumulator() for _ in range(len(request.prompts) * request.n)]
        try:
            async with aclosing(self._deltas(engine, request, plan, writer)) as deltas:
                async for delta in deltas:
                    choices[delta.index].add(delta)
        except ConnectionDroppedError:
            # Send less than the Content-Length announces, so that the client sees a truncated body.
            await writer.start_json(1000)
            await writer.write(b'{"id":"' + envelope.id.encode())
            raise
        body: object = self._api.make_body(request, envelope, choices, finish=plan.finish)
        if plan.malformed:
            body = b'{"id":"' + envelope.id.encode() + b'","choices":[{'
        await writer.send_json(200, body)
        self._request_log.record_tokens_sent(sum(len(choice.texts) for choice in choices))

    async def _deltas(
        self, engine: EngineCore, request: GenerationRequest, plan: FaultPlan, writer: ResponseWriter
    ) -> AsyncGenerator[Delta, None]:
        """The engine's deltas, with the faults applied that are due after a number of tokens."""
        count = 0
        async with aclosing(engine.generate(request, plan)) as deltas:
            try:
                async for delta in deltas:
                    await apply_fault(plan, count, writer)
                    yield delta
                    count += len(delta.tokens)
                await apply_fault(plan, count, writer)
            except EngineFailedError as failure:
                # Makes the engine count the choices that still run as failed and not as aborted.
                await deltas.athrow(failure)
                raise


def _padded(frame: bytes, size: int) -> bytes:
    # 13 bytes: the field's own syntax, `"padding":"",`.
    return frame.replace(b"{", b'{"padding":"%b",' % (b"." * (size - len(frame) - 13)), 1)
