"""The memory of /v1/responses: `store` and `previous_response_id`, at any router and any engine.

Theory of operation. It stands before the gateway of this endpoint. A request that names a stored response is made whole
with what was said before, and passed on as one that depends on nothing: so it is looked up, shared, routed and retried
as any other. When its response is complete, from wherever it came, the turn is stored before the client gets the end of
it, so that the next turn finds it at any router.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from router.core.cache.cache_control import CacheControl
from router.core.cache.redis_keys import entry_key
from router.core.endpoints.conversations.background_response import not_stored_error
from router.core.endpoints.conversations.final_response import FinalResponse, find_final_response
from router.core.endpoints.conversations.ids import is_storable_id, shown_id
from router.core.endpoints.conversations.items import extend_digest, join_items
from router.core.endpoints.conversations.turn import PREVIOUS_ID, Turn, parse_turn, whole_body
from router.core.endpoints.conversations.turn_at_engine import TurnAtEngine, is_best_kept
from router.core.endpoints.requests.malformed import MALFORMED_RESPONSE_ERRORS
from router.core.routing.session import session_of_root
from router.errors import ApiError, bad_request
from router.flow.caller import Caller
from router.flow.exchange import Exchange
from router.flow.lookup import FullResponse
from router.flow.memory.background_responses import BackgroundResponses
from router.flow.memory.background_stream import responses_unavailable
from router.flow.memory.item_references import ItemReferences
from router.flow.memory.remembered_stream import RememberedStream
from router.flow.request_handler import RequestHandler, StreamedResponse
from router.net.redis.pipeline import RedisDownError
from router.net.repeated_warning import RepeatedWarning
from router.shared.cache.purges import BEGINNING, PurgePosition, Purges
from router.shared.responses.kept_response import (
    MAX_TURNS,
    Conversation,
    KeptResponse,
    ResponseNotCompleteError,
    ResponseNotFoundError,
)
from router.shared.responses.response_records import ResponseRecords

log = logging.getLogger("roundhouse.responses")

_PROBLEMS: Final = {
    "failed": "Redis does not answer, or takes no writes",
    "collision": "its engine has given its id to another one before; neither can be continued",
    "too-large": "it is larger than responses.max_size",
}
"""What is logged, by the result."""


class Place(NamedTuple):
    """Where a turn is in its conversation. `digest`, `size`: of what was said before; for the others see KeptResponse.

    Without the items, which a stream would hold to its end. `engine`: the one that answers the turn.
    """

    parent: str = ""
    root: str = ""
    ancestors: tuple[str, ...] = ()
    digest: str = ""
    size: int = 0
    alive_until: int = 0
    engine: str = ""


_FIRST: Final = Place()


class ConversationGateway:
    """- A turn that names a stored response gets the items of all turns before it, or an error; never less.
    - A reference to an item of a stored response becomes that item, or an error.
    - A complete response is stored before its client gets the end of it, unless the request has `store: false`.
    - The client gets its response also where it cannot be stored; that is logged and counted.
    - What was purged during a request is not stored after it.
    - A turn after one with tools that engines run goes to the engine that answered that, if it is there: it may have
      kept what its tools said.
    """

    def __init__(
        self, gateway: RequestHandler, background: BackgroundResponses, records: ResponseRecords,
        references: ItemReferences, purges: Purges, *,
        max_body: int, max_size: int, record_result: Callable[[str], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`max_body`: bytes of a conversation; `max_size`: of what is stored for a turn. `clock`: see CacheLookup."""
        self._gateway = gateway
        self._background = background
        self._records = records
        self._references = references
        self._purges = purges
        self._max_body = max_body
        self._max_size = max_size
        self._record_result = record_result
        self._clock = clock
        self._warning = RepeatedWarning(log)

    async def handle(
        self, exchange: Exchange, control: CacheControl, body: bytes, caller: Caller
    ) -> FullResponse | StreamedResponse:
        turn = parse_turn(body, is_kept_by_default=caller.is_kept_by_default)
        if turn is None:
            return await self._gateway.handle(exchange, control, body, caller)
        since, place, asked, may_be_kept = self._purges.last_position, _FIRST, body, turn.has_server_tools
        if turn.is_background and turn.kept == "nothing":
            raise not_stored_error()
        if turn.references:
            turn = await self._references.resolve(exchange.tenant, turn, caller.body_allocation)
            body = whole_body(body, turn.items)
        if turn.previous_id is not None:
            said = await self._said_before(exchange.tenant, turn, turn.previous_id, caller)
            body, place = whole_body(body, join_items(said.items, turn.items)), _place_after(said)
            may_be_kept = may_be_kept or bool(said.last.engine)
            if said.last.engine and is_best_kept(said.items, said.last.output):
                caller.at_engine = TurnAtEngine(said.last.engine, turn.previous_id, turn.items)
            del said
        if turn.is_background:
            keep = partial(self._keep, exchange.tenant, turn, place, since)
            return await self._background.start(exchange, control, asked, body, caller, place.parent, keep)
        response = await self._gateway.handle(exchange, control, body, caller)
        if turn.kept == "nothing":
            return response
        if turn.kept == "output":
            turn = turn._replace(items=b"", references=())  # a stream would hold them to its end
        # Engines know no tenants: with an id that a client has chosen, a turn could continue what is another tenant's.
        if may_be_kept and not turn.has_own_id:
            place = place._replace(engine=exchange.engine or "")
        remember = partial(self._remember, exchange.tenant, turn, place, since)
        if not isinstance(response, FullResponse):
            return RememberedStream(response, partial(remember, is_stream=True))
        await remember(response.body, is_stream=response.stream)
        return response

    # -- before -------------------------------------------------------------------------------------------------------

    async def _said_before(self, tenant: str, turn: Turn, previous_id: str, caller: Caller) -> Conversation:
        """Raises ApiError."""
        if not is_storable_id(previous_id):
            raise previous_not_found(previous_id)
        try:
            last = await self._records.find(tenant, previous_id)
            check_bounds(last, turn, self._max_body)
            caller.body_allocation.allocate(last.size)  # of the whole body, beside the client's
            said = await self._records.conversation(tenant, last)
        except ResponseNotCompleteError:
            raise _previous_not_complete(previous_id) from None
        except ResponseNotFoundError:
            raise previous_not_found(previous_id) from None
        except RedisDownError:
            raise responses_unavailable() from None
        if caller.session is None:
            caller.session = session_of_root(last.root)
        return said

    # -- after --------------------------------------------------------------------------------------------------------

    async def _remember(
        self, tenant: str, turn: Turn, place: Place, since: PurgePosition, data: bytes, *, is_stream: bool
    ) -> None:
        final = find_final_response(data, is_stream=is_stream)
        if final is not None:
            await self._keep(tenant, turn, place, since, final)

    async def _keep(
        self, tenant: str, turn: Turn, place: Place, since: PurgePosition, final: FinalResponse,
        events: bytes | None = None,
    ) -> str:  # fmt: skip
        """The result, as a word for the metric. `events`: see ResponseRecords."""
        result = "invalid"
        is_too_large = _kept_size(turn, final) > self._max_size
        if is_too_large and not turn.is_background:
            turn = turn._replace(kept="output")  # so that later requests can refer to its items
        if not is_storable_id(final.id):
            self._warning.log("a response cannot be kept: its engine gave it the id %.200r", final.id)
        elif _kept_size(turn, final) > self._max_size:
            result = "too-large"
        elif self._purges.covers(_any_entry_of(tenant), (), since):
            # Without any position, the log could not be read then, as in EntryStore.
            result = "failed" if since == BEGINNING else "purged"
        else:
            result = await self._store(tenant, turn, place, final, events)
        if is_too_large and result == "stored":
            result = "too-large"
        if result in _PROBLEMS:
            self._warning.log("a response cannot be kept: %s", _PROBLEMS[result])
        self._record_result(result)
        return result

    async def _store(self, tenant: str, turn: Turn, place: Place, final: FinalResponse, events: bytes | None) -> str:
        try:
            if turn.kept == "output":
                return await self._records.store_output(tenant, final.id, final.items, self._clock())
            items = join_items(turn.items, final.items)
            stored = KeptResponse(
                id=final.id,
                parent=place.parent,
                root=place.root or final.id,
                ancestors=place.ancestors,
                before=place.digest,
                digest=extend_digest(place.digest, items),
                size=place.size + len(items) + 1,
                alive_until=place.alive_until,
                input=turn.items,
                output=final.items,
                response=final.body,
                engine=place.engine,
            )
            return await self._records.store(tenant, stored, self._clock(), events)
        except MALFORMED_RESPONSE_ERRORS:
            return "invalid"
        except RedisDownError:
            return "failed"


def _kept_size(turn: Turn, final: FinalResponse) -> int:
    return len(final.items) + (len(turn.items) + len(final.body) if turn.kept == "turn" else 0)


def _place_after(said: Conversation) -> Place:
    last = said.last
    return Place(last.id, last.root, said.turn_ids, last.digest, last.size, last.alive_until)


def check_bounds(last: KeptResponse, turn: Turn, max_body: int) -> None:
    """Raises ApiError for a turn after `last` that is one too many, or too large."""
    if len(last.ancestors) + 2 > MAX_TURNS:
        raise bad_request(
            f"The conversation has more than {MAX_TURNS} turns.", param=PREVIOUS_ID, code="conversation_too_long"
        )
    if last.size + len(turn.items) > max_body:
        raise ApiError(
            413, f"The conversation has more than {max_body} bytes.", param=PREVIOUS_ID, code="body_too_large"
        )


def previous_not_found(id_: str) -> ApiError:
    return ApiError(
        404,
        f"Previous response with id '{shown_id(id_)}' not found.",
        param=PREVIOUS_ID,
        code="previous_response_not_found",
    )


def _previous_not_complete(id_: str) -> ApiError:
    return bad_request(
        f"Previous response with id '{shown_id(id_)}' cannot be continued: it is not complete, or is too large.",
        param=PREVIOUS_ID,
        code="previous_response_not_complete",
    )


def _any_entry_of(tenant: str) -> str:
    """The key of an entry that a purge of the tenant covers, or one of all, and no other purge."""
    return entry_key(tenant, "-", "-", "-", "-")
