"""GET and DELETE of a kept response, and the items that it was made from.

Source: https://platform.openai.com/docs/api-reference/responses
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Final

import msgspec
from starlette.routing import Route

from router.api.inference.tenant_requests import Answer, TenantRequest, TenantRequests
from router.core.endpoints.conversations.input_list import list_page, parse_page_query
from router.core.endpoints.conversations.turn import is_response_id, shown_id, with_previous_id
from router.core.endpoints.responses import RESPONSES
from router.errors import ApiError, bad_request
from router.flow.memory.conversation_gateway import responses_unavailable
from router.net.redis.pipeline import RedisDownError
from router.shared.responses.kept_response import ResponseNotFoundError
from router.shared.responses.response_records import ResponseRecords

_PATH: Final = RESPONSES.path + "/{id}"
_ITEMS_PATH: Final = f"{_PATH}/input_items"


class KeptResponses:
    """What is kept for a tenant, with any of its keys: 404 for all else, 503 while Redis does not answer."""

    def __init__(self, requests: TenantRequests, records: ResponseRecords) -> None:
        self._requests = requests
        self._records = records

    def routes(self) -> list[Route]:
        return [
            self._route("GET", _PATH, self._get),
            self._route("DELETE", _PATH, self._delete),
            self._route("GET", _ITEMS_PATH, self._input_items),
        ]

    def _route(self, method: str, path: str, find: Callable[[TenantRequest, str], Awaitable[bytes]]) -> Route:
        # The log has no method of its own, since all other requests are POSTs.
        handler = self._requests.handler(RESPONSES.at(f"{method} {path}"), _with_errors(find))
        return Route(path, handler, methods=[method])

    async def _get(self, request: TenantRequest, id_: str) -> bytes:
        if request.http.query_params.get("stream") == "true":
            raise bad_request("A kept response cannot be streamed.", param="stream")
        found = await self._records.find(request.tenant, id_, with_object=True)
        request.memory.allocate(len(found.response))
        return with_previous_id(found.response, found.parent)

    async def _input_items(self, request: TenantRequest, id_: str) -> bytes:
        query = parse_page_query(request.http.query_params)
        last = await self._records.find(request.tenant, id_)
        request.memory.allocate(last.size)
        conversation = await self._records.conversation(request.tenant, last)
        return await _in_steps(list_page(conversation.input_parts, query))

    async def _delete(self, request: TenantRequest, id_: str) -> bytes:
        if not await self._records.delete(request.tenant, id_):
            raise ResponseNotFoundError
        return msgspec.json.encode({"id": id_, "object": "response", "deleted": True})


def _with_errors(find: Callable[[TenantRequest, str], Awaitable[bytes]]) -> Answer:
    """`find` gets the id. It raises ResponseNotFoundError, RedisDownError and ApiError."""

    async def answer(request: TenantRequest) -> bytes:
        id_ = request.http.path_params["id"]
        if not is_response_id(id_):
            raise _not_found(id_)
        try:
            return await find(request, id_)
        except ResponseNotFoundError:
            raise _not_found(id_) from None
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


def _not_found(id_: str) -> ApiError:
    return ApiError(404, f"Response with id '{shown_id(id_)}' not found.", param="id", code="response_not_found")
