"""uvicorn's HTTP protocol with a bound on what a client may send before its body."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.api.corked import CorkedTransport
from router.errors import ApiError

MAX_HEAD: Final = 64 * 1024
"""Bytes of request line and headers; RFC 9110, section 5.4, leaves the limit to the server."""

_BODY: Final = ApiError(431, "The headers are too large.", code="headers_too_large").body()
_TOO_LARGE: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a head that does not end; the parser itself would gather it for as long as it comes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._in_head = False
        self._head = 0
        super().__init__(*args, **options)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(CorkedTransport(transport, self.loop))  # type: ignore[arg-type]  # it behaves as one

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
