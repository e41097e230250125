"""GET and DELETE of a kept response, the items that it was made from, and the end of one in the background.

Source: https://platform.openai.com/docs/api-reference/responses
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Final
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Receive, Scope, Send

from router.api.inference.tenant_requests import Answer, TenantRequest, TenantRequests
from router.core.endpoints.conversations.ids import is_storable_id
from router.core.endpoints.conversations.input_list import list_page, parse_page_query
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.responses import RESPONSES
from router.errors import bad_request
from router.flow.memory.background_stream import response_not_found, responses_unavailable
from router.net.redis.pipeline import RedisDownError
from router.shared.responses.background_records import BackgroundRecords
from router.shared.responses.kept_response import ResponseNotCompleteError, ResponseNotFoundError
from router.shared.responses.response_records import ResponseRecords

_PATH: Final = RESPONSES.path + "/{id}"
_ITEMS_PATH: Final = f"{_PATH}/input_items"


_CANCEL_PATH: Final = f"{_PATH}/cancel"

_Find = Callable[[TenantRequest, str], Awaitable[bytes]]


def at(method: str, path: str) -> Endpoint:
    # The log has no method of its own, since all other requests are POSTs.
    return RESPONSES.at(f"{method} {path}")


STREAM_ENDPOINT: Final = at("GET", _PATH)


class _StreamOrObject:
    """An ASGI application: a GET is answered by one of two, as its query says."""

    def __init__(self, stream: ASGIApp, response: ASGIApp) -> None:
        self._stream = stream
        self._response = response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = parse_qs(scope["query_string"].decode("latin-1")).get("stream", [""])[-1] == "true"
        await (self._stream if is_stream else self._response)(scope, receive, send)


class KeptResponses:
    """What is kept for a tenant, with any of its keys: 404 for all else, 503 while Redis does not answer."""

    def __init__(
        self, requests: TenantRequests, records: ResponseRecords, background: BackgroundRecords, stream: ASGIApp
    ) -> None:
        """`stream`: answers a GET with `?stream=true`."""
        self._requests = requests
        self._records = records
        self._background = background
        self._stream = stream

    def routes(self) -> list[Route]:
        get = self._handler("GET", _PATH, self._get)
        return [
            Route(_PATH, _StreamOrObject(self._stream, request_response(get)), methods=["GET"]),
            self._route("DELETE", _PATH, self._delete),
            self._route("GET", _ITEMS_PATH, self._input_items),
            self._route("POST", _CANCEL_PATH, self._cancel),
        ]

    def _route(self, method: str, path: str, find: _Find) -> Route:
        return Route(path, self._handler(method, path, find), methods=[method])

    def _handler(self, method: str, path: str, find: _Find) -> Callable[[Request], Awaitable[Response]]:
        return self._requests.handler(at(method, path), _with_errors(find))

    async def _get(self, request: TenantRequest, id_: str) -> bytes:
        found = await self._background.find(request.tenant, id_)
        request.memory.allocate(len(found.body))
        return found.body

    async def _cancel(self, request: TenantRequest, id_: str) -> bytes:
        found = await self._background.cancel(request.tenant, id_)
        if not found.is_background:
            raise bad_request(
                "Only a response that was made with `background` can be cancelled.", param="id", code="not_background"
            )
        return found.body

    async def _input_items(self, request: TenantRequest, id_: str) -> bytes:
        query = parse_page_query(request.http.query_params)
        try:
            last = await self._records.find(request.tenant, id_)
        except ResponseNotCompleteError:
            raise bad_request(
                "The response has no items to list: it is not complete, or is too large.", param="id",
                code="response_not_complete",
            ) from None  # fmt: skip
        request.memory.allocate(last.size)
        conversation = await self._records.conversation(request.tenant, last)
        return await _in_steps(list_page(conversation.input_parts, query))

    async def _delete(self, request: TenantRequest, id_: str) -> bytes:
        if not await self._records.delete(request.tenant, id_):
            raise ResponseNotFoundError
        return msgspec.json.encode({"id": id_, "object": "response", "deleted": True})


def _with_errors(find: _Find) -> Answer:
    """`find` gets the id. It raises ResponseNotFoundError, RedisDownError and ApiError."""

    async def answer(request: TenantRequest) -> bytes:
        id_ = request.http.path_params["id"]
        if not is_storable_id(id_):
            raise response_not_found(id_)
        try:
            return await find(request, id_)
        except ResponseNotFoundError:
            raise response_not_found(id_) from None
        except RedisDownError:
            raise responses_unavailable() from None

    return answer


async def _in_steps(steps: Generator[None, None, bytes]) -> bytes:
    """What the steps return. Other requests are served between them."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: bytes = end.value
            return found
        await asyncio.sleep(0)
