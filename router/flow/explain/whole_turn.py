"""The body of a request as it is looked up: a turn of a conversation with all that was said before."""

from typing import NamedTuple

from router.core.endpoints.conversations.background_response import foreground_body
from router.core.endpoints.conversations.ids import is_storable_id
from router.core.endpoints.conversations.item_references import (
    item_not_found,
    references_too_large,
    resolve_references,
    resolved_size,
)
from router.core.endpoints.conversations.items import join_items
from router.core.endpoints.conversations.turn import Turn, parse_turn, whole_body
from router.core.endpoints.conversations.turn_at_engine import is_best_kept
from router.flow.memory.conversation_gateway import check_bounds, previous_not_found
from router.shared.responses.kept_items import ItemNotFoundError
from router.shared.responses.kept_response import ResponseNotFoundError
from router.store.admin.kept_responses import find_items, find_response, read_conversation
from router.store.admin.scan import RedisClient


class WholeTurn(NamedTuple):
    """`may_be_kept`: an engine may have kept more of the conversation, so that the request is not looked up."""

    body: bytes
    may_be_kept: bool = False


async def whole_turn(client: RedisClient, tenant: str, body: bytes, max_body: int) -> WholeTurn:
    """`body`: of /v1/responses. Raises ApiError as ConversationGateway does, and RedisBackendError."""
    turn = parse_turn(body)
    if turn is None:
        return WholeTurn(body)
    if turn.is_background:
        body = foreground_body(body)
    if turn.references:
        turn = await _resolved(client, tenant, turn, max_body)
        body = whole_body(body, turn.items)
    if turn.previous_id is None:
        return WholeTurn(body)
    if not is_storable_id(turn.previous_id):
        raise previous_not_found(turn.previous_id)
    try:
        last = await find_response(client, tenant, turn.previous_id)
        check_bounds(last, turn, max_body)
        said = await read_conversation(client, tenant, last)
    except ResponseNotFoundError:
        raise previous_not_found(turn.previous_id) from None
    may_be_kept = bool(last.engine) and is_best_kept(said.items, last.output)
    return WholeTurn(whole_body(body, join_items(said.items, turn.items)), may_be_kept)


async def _resolved(client: RedisClient, tenant: str, turn: Turn, max_body: int) -> Turn:
    def check(size: int) -> None:
        if len(turn.items) + size > max_body:
            raise references_too_large(max_body)

    try:
        found = await find_items(client, tenant, turn.references, check)
    except ItemNotFoundError as error:
        raise item_not_found(error.id) from None
    check(resolved_size(turn.references, found))
    return turn._replace(items=resolve_references(turn.items, found))
