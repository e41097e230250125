"""The one seam to the engines: a request goes out through an httpx transport, and its answer comes back as bytes.

Which transport that is, is the business of whoever builds the client. httpx's exceptions end here.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self, cast

import httpx

from router.core.types import Endpoint
from router.upstream.catalog import Engine

_HEAD: Final = {"content-type": "application/json", "accept-encoding": "identity"}


class EngineError(Exception):
    """An engine did not do what it was asked. `reason` is a word for metrics, the message a sentence for people.

    `retry_after`: seconds after which it wants to be asked again, if it said so.
    """

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after


class EngineResponse:
    """An engine's answer, from its head on. Leaving it frees the engine.

    - `status`, `content_type`, `retry_after`: of the head; None where it has none.
    - `next` gives the body as it arrives, undecoded.
    """

    def __init__(self, response: httpx.Response) -> None:
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._chunks = self._stream.__aiter__()
        self.status = response.status_code
        self.content_type = response.headers.get("content-type")
        self.retry_after = response.headers.get("retry-after")

    async def next(self) -> bytes:
        """What came since the last call, waiting for it if need be; nothing at the end. Raises EngineError."""
        try:
            return await anext(self._chunks, b"")
        except httpx.TransportError as error:
            raise _translated(error) from error

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises EngineError, also for one of more than `limit` bytes."""
        parts = []
        size = 0
        while chunk := await self.next():
            size += len(chunk)
            if size > limit:
                raise EngineError("too-large", f"the engine's answer has more than {limit} bytes")
            parts.append(chunk)
        return b"".join(parts)

    async def aclose(self) -> None:
        """Gives the connection back if the answer is over, else closes it, which tells the engine to stop."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class EngineClient:
    """Asks engines, through the transport that it is given."""

    def __init__(self, transport: httpx.AsyncBaseTransport, *, connect_timeout: float) -> None:
        """`connect_timeout` in seconds; how long an answer may take is for the caller to say and to watch."""
        self._transport = transport
        # No limit between bytes: only the caller knows which bytes are tokens.
        self._patience = {"timeout": {"connect": connect_timeout, "read": None, "write": connect_timeout, "pool": None}}

    async def post(self, engine: Engine, endpoint: Endpoint, body: bytes, headers: Mapping[str, str]) -> EngineResponse:
        """Sends a request; returns once the head of the answer is there. Raises EngineError."""
        return await self._send("POST", engine.at(endpoint.value), body, {**_HEAD, **headers})

    async def get(self, engine: Engine, path: str) -> EngineResponse:
        """Asks for one of an engine's own pages, such as /health. Raises EngineError."""
        return await self._send("GET", engine.at(path), None, {"accept-encoding": "identity"})

    async def _send(
        self, method: str, url: httpx.URL, body: bytes | None, headers: Mapping[str, str]
    ) -> EngineResponse:
        request = httpx.Request(method, url, headers=headers, content=body, extensions=self._patience)
        try:
            return EngineResponse(await self._transport.handle_async_request(request))
        except httpx.TransportError as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        await self._transport.aclose()


def _translated(error: httpx.TransportError) -> EngineError:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return EngineError("connect", "the engine cannot be reached")
        case httpx.TimeoutException():
            return EngineError("timeout", "the engine took too long")
        case httpx.RemoteProtocolError():
            return EngineError("broken-off", "the engine broke its answer off")
        case _:
            return EngineError("reset", "the connection to the engine broke")
