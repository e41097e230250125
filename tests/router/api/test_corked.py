"""What is written in one turn of the loop goes out in one piece."""

import asyncio
import socket

from router.api.corked import CorkedTransport


class Wire(asyncio.Protocol):
    """A connection of this machine to itself; `pieces` are what its transport was given to write."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    async def open(self) -> tuple[CorkedTransport, socket.socket]:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: self, sock=ours)
        write = transport.write

        def noted(data: bytes) -> None:
            self.pieces.append(bytes(data))
            write(data)

        transport.write = noted  # type: ignore[method-assign,assignment]
        return CorkedTransport(transport, loop), theirs


async def test_what_is_written_in_one_turn_goes_out_in_one_piece_and_in_order() -> None:
    wire = Wire()
    corked, other = await wire.open()
    corked.write(b"head ")
    corked.write(b"body")
    assert wire.pieces == []
    await asyncio.sleep(0)
    corked.write(b" more")
    await asyncio.sleep(0)
    assert wire.pieces == [b"head body", b" more"]
    assert await asyncio.get_running_loop().sock_recv(other, 100) == b"head body more"
    corked.close()
    other.close()


async def test_closing_sends_what_has_been_gathered() -> None:
    wire = Wire()
    corked, other = await wire.open()
    corked.write(b"last words")
    corked.close()
    assert corked.is_closing()
    assert await asyncio.get_running_loop().sock_recv(other, 100) == b"last words"
    assert await asyncio.get_running_loop().sock_recv(other, 100) == b""
    other.close()


async def test_all_else_is_the_transports_own() -> None:
    corked, other = await Wire().open()
    assert corked.get_extra_info("socket").fileno() > 0
    assert not corked.is_closing()
    assert corked.get_write_buffer_size() == 0
    corked.abort()
    other.close()
