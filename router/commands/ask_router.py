"""Asks a running router for a document of its admin API, with the administrator's key or a prompt for it."""

import asyncio
import sys
from pathlib import Path
from typing import TypeVar

from router.commands.admin_access import KEY_VARIABLE, admin_key, prompted_key, router_url
from router.commands.console import fail

DocumentT = TypeVar("DocumentT")


def ask_router(
    path: str,
    kind: type[DocumentT],
    what: str,
    *,
    url: str | None,
    key_file: Path | None,
    config: Path,
    question: bytes | None = None,
) -> DocumentT:
    """GET without a `question`, else POST. `what` is asked for, in messages. Exits if the router does not answer.

    `url`, `key_file`: options of the command.
    """
    from router.commands.admin_client import KeyRefusedError, RouterError

    address, key = router_url(url, config), admin_key(key_file, url, config)
    try:
        try:
            return asyncio.run(_ask(address, key, path, kind, what, question))
        except KeyRefusedError as error:
            if not sys.stdin.isatty():
                fail(f"{error} Set {KEY_VARIABLE} or --key-file.")
            return asyncio.run(_ask(address, prompted_key(), path, kind, what, question))
    except RouterError as error:
        fail(str(error))


async def _ask(
    url: str, key: str | None, path: str, kind: type[DocumentT], what: str, question: bytes | None
) -> DocumentT:
    from router.commands.admin_client import AdminClient

    client = AdminClient(url, key, what)
    try:
        return await client.ask(path, kind, question)
    finally:
        await client.aclose()
