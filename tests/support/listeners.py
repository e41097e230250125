"""Listening sockets of asyncio in tests."""

import asyncio
from typing import Final

# asyncio accepts a connection in one turn of the event loop, creates its transport and its protocol in the next two,
# and begins its task in the fourth.
_TURNS: Final = 4


async def stop_listening(listener: asyncio.Server) -> None:
    """Accepts no more; those accepted are being served when it returns.

    After `close` alone, nothing closes a connection that is just being accepted: asyncio cannot create its transport,
    or ends its task before it has begun. pytest then reports an unclosed socket in a later test.
    """
    loop = asyncio.get_running_loop()
    for accepting in listener.sockets:
        loop.remove_reader(accepting.fileno())
    for _ in range(_TURNS):
        await asyncio.sleep(0)
    listener.close()
