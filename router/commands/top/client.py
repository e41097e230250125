"""Reads a router's status over HTTP, with an administrator's key."""

import asyncio
from typing import Final

import msgspec

from router.commands.admin_client import AdminClient, DocumentT, RouterError
from router.shared.status.status_documents import HistoryDocument, RequestsDocument, StatusDocument

_HISTORY: Final = "/admin/history?minutes=60"
_REQUESTS: Final = "/admin/requests?limit=50"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The documents of one moment. The last two are None if the router cannot read them, as without Redis."""

    status: StatusDocument
    history: HistoryDocument | None
    requests: RequestsDocument | None


class StatusClient:
    """Reads the documents of a router at `url`, which has no slash at its end."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self._client = AdminClient(url, key, "status")

    async def read(self) -> Snapshot:
        """Raises RouterError."""
        # First and alone: if nobody has watched, the router waits here until all processes have reported; and reading
        # the requests counts as watching.
        status = await self._client.ask("/admin/status", StatusDocument)
        history, requests = await asyncio.gather(
            self._client.ask(_HISTORY, HistoryDocument),
            self._client.ask(_REQUESTS, RequestsDocument),
            return_exceptions=True,
        )
        return Snapshot(status=status, history=_unless_failed(history), requests=_unless_failed(requests))

    async def aclose(self) -> None:
        await self._client.aclose()


def _unless_failed(document: DocumentT | BaseException) -> DocumentT | None:
    if not isinstance(document, BaseException):
        return document
    if isinstance(document, RouterError):
        return None
    raise document
