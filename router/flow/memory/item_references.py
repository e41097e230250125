"""Turns with references to items of earlier responses, made whole from what is kept."""

from router.core.endpoints.conversations.item_references import (
    item_not_found,
    references_too_large,
    resolve_references,
    resolved_size,
)
from router.core.endpoints.conversations.turn import Turn
from router.flow.body_budget import BodyAllocation
from router.flow.memory.background_stream import responses_unavailable
from router.net.redis.pipeline import RedisDownError
from router.shared.responses.kept_items import ItemNotFoundError, KeptItems


class ItemReferences:
    def __init__(self, items: KeptItems, max_body: int) -> None:
        """`max_body`: bytes of an input with all that it refers to."""
        self._items = items
        self._max_body = max_body

    async def resolve(self, tenant: str, turn: Turn, allocation: BodyAllocation) -> Turn:
        """The turn with the items in place of the references. Raises ApiError."""
        read = 0

        def allocate(size: int) -> None:
            nonlocal read
            self._check(turn, size)
            allocation.allocate(size)
            read = size

        try:
            found = await self._items.find(tenant, turn.references, allocate)
        except ItemNotFoundError as error:
            raise item_not_found(error.id) from None
        except RedisDownError:
            raise responses_unavailable() from None
        size = resolved_size(turn.references, found)
        self._check(turn, size)
        allocation.allocate(max(0, size - read))  # one item may come many times
        return turn._replace(items=resolve_references(turn.items, found))

    def _check(self, turn: Turn, size: int) -> None:
        if len(turn.items) + size > self._max_body:
            raise references_too_large(self._max_body)
