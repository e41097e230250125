"""The response of an engine that continues a chat with tools by token ids, with the events of a chat."""

from collections.abc import Awaitable, Callable

from router.core.endpoints.continuation.continued_stream import DIVERGED
from router.core.endpoints.continuation.derendered_chat import DerenderedChat
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.net.client.errors import EngineError
from router.net.client.response import EngineResponse

Derender = Callable[[bytes, float], Awaitable[bytes]]
"""Sends a request to the engine's parser; returns its reply. The second argument: seconds until it must be there."""


class DerenderedResponse:
    """What EngineStream needs of an EngineResponse. All events come at the end, at once."""

    def __init__(
        self, response: EngineResponse, chat: DerenderedChat, derender: Derender, *, token_timeout: float,
        on_first_token: Callable[[], None],
    ) -> None:  # fmt: skip
        """`response`: a completion of ids, whose events have the ids of tokens.

        `token_timeout`: seconds from one token to the next; the parser may take as long. `on_first_token` is called
        when the engine has generated the first one.
        """
        self._response = response
        self._chat = chat
        self._derender = derender
        self._token_timeout = token_timeout
        self._on_first_token = on_first_token

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_timeout: float) -> bool:
        """See EngineResponse.stream_to. `chunk_timeout`: seconds until the first token."""
        timeout = self._token_timeout
        try:
            if not await self._response.stream_to(self._begin, chunk_timeout):
                return False  # the completion broke off
            if self._chat.has_tokens:
                self._on_first_token()
            if not self._chat.is_over and not await self._response.stream_to(self._collect, timeout):
                return False
            request = self._chat.request()
            rest = self._chat.rest(await self._derender(request, timeout) if request is not None else None)
        except MALFORMED_RESPONSE_ERRORS as error:
            raise EngineError("malformed", "the engine's response is not valid") from error
        if rest is None:
            raise EngineError("diverged", DIVERGED.decode())
        return sink(rest)

    def bind_if(self, is_bound: Callable[[], bool]) -> None:
        self._response.bind_if(is_bound)

    def close(self, *, linger: bool = False) -> None:
        self._response.close(linger=linger)

    def _begin(self, data: bytes) -> bool:
        self._chat.feed(data)
        return self._chat.has_tokens or self._chat.is_over

    def _collect(self, data: bytes) -> bool:
        self._chat.feed(data)
        return self._chat.is_over
