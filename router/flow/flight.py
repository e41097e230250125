"""A generation on its way to its client, recorded as it passes, and kept if it ends well."""

import time
from collections.abc import Callable

from router.core.error_shapes import error_frame
from router.core.recording import NotKept, Recording
from router.core.request import Request
from router.errors import UPSTREAM, ApiError
from router.flow.dispatch import Generation
from router.flow.exchange import Exchange
from router.upstream.client import EngineError

Keep = Callable[[Recording], None]
"""Stores an answer, without waiting for it."""


class Flight:
    """The stream of one answer.

    - `next` gives what the client gets, the first token at once, and nothing at the end.
    - What ended well has been handed to `keep` before the client sees `[DONE]`, or the last event of its endpoint.
    - A generation that fails after its first token ends with one error event and no `[DONE]`.
    - `aclose` frees the engine, whether or not the answer was over.
    """

    def __init__(self, generation: Generation, request: Request, exchange: Exchange, keep: Keep | None) -> None:
        """`keep` is None where the answer must not be stored."""
        self._generation = generation
        self._request = request
        self._exchange = exchange
        self._keep = keep
        self._first = True
        self._over = False

    async def next(self) -> bytes:
        if self._over:
            return b""
        if self._first:
            self._first = False
            self._exchange.first_token = time.perf_counter()
            if self._generation.first:
                return self._generation.first
        try:
            data = await self._generation.next()
        except EngineError as error:
            self._over = True
            return self._broken(error)
        if data:
            return data
        self._over = True
        return self._well_ended()

    def _well_ended(self) -> bytes:
        recorder = self._generation.recorder
        if recorder.usage is not None:
            self._exchange.prompt_tokens = recorder.usage.prompt_tokens
            self._exchange.completion_tokens = recorder.usage.completion_tokens
        if self._keep is not None:
            recording = recorder.recording(self._request)
            if isinstance(recording, NotKept):
                self._exchange.not_kept = recording
            else:
                self._keep(recording)
        return recorder.ending(include_usage=self._request.include_usage)

    def _broken(self, error: EngineError) -> bytes:
        self._exchange.attempts.append((self._generation.engine.name, error.reason))
        self._exchange.outcome = "failed"
        self._exchange.error = error.reason
        self._exchange.not_kept = NotKept.ERROR if error.reason == "error-frame" else NotKept.INCOMPLETE
        message = f"The answer broke off: {error}."
        told = ApiError(502, message, kind=UPSTREAM, code="engine_failed")
        return error_frame(self._request.endpoint, told)

    async def aclose(self) -> None:
        await self._generation.aclose()
