"""The body of a request as it is looked up: a turn of a conversation with all that was said before."""

from router.core.endpoints.conversations.background_response import foreground_body
from router.core.endpoints.conversations.items import join_items
from router.core.endpoints.conversations.turn import is_response_id, parse_turn, whole_body
from router.flow.memory.conversation_gateway import check_bounds, previous_not_found
from router.shared.responses.kept_response import ResponseNotFoundError
from router.store.admin.kept_responses import find_response, read_conversation
from router.store.admin.scan import RedisClient


async def whole_turn(client: RedisClient, tenant: str, body: bytes, max_body: int) -> bytes:
    """`body`: of /v1/responses. Raises ApiError as ConversationGateway does, and RedisBackendError."""
    turn = parse_turn(body)
    if turn is None:
        return body
    if turn.is_background:
        body = foreground_body(body)
    if turn.previous_id is None:
        return body
    if not is_response_id(turn.previous_id):
        raise previous_not_found(turn.previous_id)
    try:
        last = await find_response(client, tenant, turn.previous_id)
        check_bounds(last, turn, max_body)
        said = await read_conversation(client, tenant, last)
    except ResponseNotFoundError:
        raise previous_not_found(turn.previous_id) from None
    return whole_body(body, join_items(said.items, turn.items))
