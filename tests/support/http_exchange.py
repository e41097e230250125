"""HTTP as bytes: one request on one connection, and the response with its chunks as received."""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class ReceivedResponse:
    """A response; `chunks` are the HTTP chunks, or the body if it is not chunked. `complete`: it was not cut off."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    complete: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


async def send_request(url: str, method: str, path: str, body: str = "", **headers: str) -> ReceivedResponse:
    """Sends one request and reads until the server closes the connection.

    Raises ConnectionResetError if the server resets the connection before a response.
    """
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        content = body.encode()
        all_headers = {"host": "sim", "connection": "close", "content-length": str(len(content)), **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in all_headers.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content)
        received = bytearray()
        try:
            while data := await reader.read(65536):
                received += data
        # After a part of the response, a reset is one way in which it can be cut off.
        except ConnectionResetError:
            if not received:
                raise
        return _parse(bytes(received))
    finally:
        writer.close()


def _parse(received: bytes) -> ReceivedResponse:
    if not received:
        raise EOFError("closed without a response")
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(first.split()[1])
    if headers.get("transfer-encoding") != "chunked":
        return ReceivedResponse(status, headers, [body], len(body) == int(headers["content-length"]))
    chunks: list[bytes] = []
    at = 0
    while (end := body.find(b"\r\n", at)) >= 0:
        length = int(body[at:end], 16)
        if length == 0:
            return ReceivedResponse(status, headers, chunks, complete=True)
        chunks.append(body[end + 2 : end + 2 + length])
        at = end + 2 + length + 2
    return ReceivedResponse(status, headers, chunks, complete=False)
