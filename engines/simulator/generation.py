"""Generating an answer and sending it, as events or as JSON."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from engines.simulator.apis import Api
from engines.simulator.bodies import Choice
from engines.simulator.endpoint import Endpoint, before_headers, strike
from engines.simulator.engine import Delta, Engine, EngineFailedError
from engines.simulator.faults import FaultBook, Script
from engines.simulator.fields import Body
from engines.simulator.frames import Envelope
from engines.simulator.generation_log import GenerationLog
from engines.simulator.rejections import Rejection, engine_failed
from engines.simulator.request_log import Ledger
from engines.simulator.requests import GenerationRequest
from engines.simulator.wire import DroppedError, Wire


class GenerationEndpoint(Endpoint[GenerationRequest]):
    """An ASGI app for one of the generating endpoints. `now` gives Unix seconds."""

    def __init__(
        self, api: Api, engine: Engine, book: FaultBook, ledger: Ledger, log: GenerationLog | None,
        now: Callable[[], float],
    ) -> None:  # fmt: skip
        super().__init__(book, ledger, log)
        self._api = api
        self._engine = engine
        self._now = now

    def _read(self, body: Body) -> GenerationRequest:
        return self._api.read(body, self._engine.settings)

    def _refusal(self, rejection: Rejection) -> object:
        return self._api.refusal(rejection)

    async def _answer(self, asked: GenerationRequest, plan: Script, wire: Wire, headers: dict[str, str]) -> None:
        settings = self._engine.settings
        name = self._api.id(asked, headers)
        envelope = Envelope(name, int(self._now()), settings.names[0], settings.fingerprint)
        send = self._stream if asked.stream else self._json
        try:
            with self._ledger.generation():
                await send(asked, plan, wire, envelope)
        except DroppedError:
            await wire.drop(reset=plan.drop_reset)
        except EngineFailedError as failure:
            await self._fail(asked, engine_failed(str(failure), failure.code), plan, wire)

    async def _fail(self, request: GenerationRequest, rejection: Rejection, plan: Script, wire: Wire) -> None:
        if not request.stream:
            await wire.reject(rejection, self._refusal(rejection))
            return
        frame = self._api.failed(rejection)
        if frame is None:
            await wire.drop(reset=False)
            return
        await wire.write(frame)
        if plan.done and self._api.after_error:
            await wire.write(self._api.after_error)
        await wire.end()

    async def _stream(self, request: GenerationRequest, plan: Script, wire: Wire, envelope: Envelope) -> None:
        frames = self._api.frames(request, envelope, finish=plan.finish)
        before_headers(plan)
        await wire.begin_stream()
        opened, cut, large, count = frames.at_once, plan.malformed, plan.event_bytes, 0
        if opened:
            for frame in frames.opening():
                await wire.write(frame)
        async with aclosing(self._deltas(request, plan, wire)) as deltas:
            async for delta in deltas:
                if not opened:
                    opened = True
                    for frame in frames.opening():
                        await wire.write(frame)
                for frame in frames.of(delta):
                    shown = frame[: len(frame) // 2] + b"\n\n" if cut else frame
                    if large and count >= plan.event_after:
                        shown, large = _padded(frame, large), 0
                    await wire.write(shown)
                    cut = False
                count += len(delta.tokens)
                self._ledger.sent(len(delta.tokens))
        for frame in frames.closing():
            await wire.write(frame)
        if plan.done:
            await wire.write(frames.ending())
        await wire.end()

    async def _json(self, request: GenerationRequest, plan: Script, wire: Wire, envelope: Envelope) -> None:
        before_headers(plan)
        choices = [Choice() for _ in range(len(request.prompts) * request.n)]
        try:
            async with aclosing(self._deltas(request, plan, wire)) as deltas:
                async for delta in deltas:
                    choices[delta.index].add(delta)
        except DroppedError:
            # A part of the body that its head announced.
            await wire.begin_json(1000)
            await wire.write(b'{"id":"' + envelope.id.encode())
            raise
        body: object = self._api.body(request, envelope, choices, finish=plan.finish)
        if plan.malformed:
            body = b'{"id":"' + envelope.id.encode() + b'","choices":[{'
        await wire.json(200, body)
        self._ledger.sent(sum(len(choice.texts) for choice in choices))

    async def _deltas(self, request: GenerationRequest, plan: Script, wire: Wire) -> AsyncGenerator[Delta, None]:
        """The engine's deltas, until a fault's number of tokens has been passed on."""
        count = 0
        async with aclosing(self._engine.generate(request, plan)) as deltas:
            try:
                async for delta in deltas:
                    await strike(plan, count, wire)
                    yield delta
                    count += len(delta.tokens)
                await strike(plan, count, wire)
            except EngineFailedError as failure:
                # So that the engine counts what was still running as failed and not as aborted.
                await deltas.athrow(failure)
                raise


def _padded(frame: bytes, size: int) -> bytes:
    """The event with one more field, so that it has `size` bytes."""
    return frame.replace(b"{", b'{"padding":"%b",' % (b"." * (size - len(frame) - 13)), 1)
