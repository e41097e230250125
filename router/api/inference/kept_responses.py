"""GET and DELETE of a kept response, and the items that it was made from.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.api.access.auth import Authenticator
from router.core.endpoints.conversations.input_list import page_of_items, parse_page_query
from router.core.endpoints.conversations.items import split_items
from router.core.endpoints.conversations.turn import is_response_id, with_previous_id
from router.core.endpoints.responses import RESPONSES
from router.errors import ApiError, bad_request
from router.flow.memory.conversation_gateway import responses_unavailable
from router.net.redis.pipeline import RedisDownError
from router.shared.responses.response_records import ResponseNotFoundError, ResponseRecords

Answer = Callable[[Request, str, str], Awaitable[bytes]]
"""The JSON for a tenant and an id. Raises ResponseNotFoundError, RedisDownError and ApiError."""

_PATH: Final = RESPONSES.path + "/{id}"
_SHOWN_ID: Final = 128  # characters of an id in a message


class KeptResponses:
    """What is kept for a tenant, with any of its keys: 404 for all else, 503 while Redis does not answer."""

    def __init__(self, auth: Authenticator, records: ResponseRecords) -> None:
        self._auth = auth
        self._records = records

    def routes(self) -> list[Route]:
        return [
            Route(_PATH, self._answered(self._get), methods=["GET"]),
            Route(_PATH, self._answered(self._delete), methods=["DELETE"]),
            Route(f"{_PATH}/input_items", self._answered(self._input_items), methods=["GET"]),
        ]

    def _answered(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        async def handler(request: Request) -> Response:
            tenant, id_ = self._auth.authenticate(request.scope["headers"]).tenant, request.path_params["id"]
            if not is_response_id(id_):
                raise _not_found(id_)
            try:
                body = await answer(request, tenant, id_)
            except ResponseNotFoundError:
                raise _not_found(id_) from None
            except RedisDownError:
                raise responses_unavailable() from None
            return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")

        return handler

    async def _get(self, request: Request, tenant: str, id_: str) -> bytes:
        if request.query_params.get("stream") == "true":
            raise bad_request("A kept response cannot be streamed.", param="stream")
        found = await self._records.find(tenant, id_, with_object=True)
        return with_previous_id(found.response, found.parent)

    async def _input_items(self, request: Request, tenant: str, id_: str) -> bytes:
        query = parse_page_query(request.query_params)
        conversation = await self._records.conversation(tenant, await self._records.find(tenant, id_))
        return msgspec.json.encode(page_of_items(split_items(conversation.input), query))

    async def _delete(self, _: Request, tenant: str, id_: str) -> bytes:
        if not await self._records.delete(tenant, id_):
            raise ResponseNotFoundError
        return msgspec.json.encode({"id": id_, "object": "response", "deleted": True})


def _not_found(id_: str) -> ApiError:
    return ApiError(404, f"Response with id '{id_[:_SHOWN_ID]}' not found.", param="id", code="response_not_found")
